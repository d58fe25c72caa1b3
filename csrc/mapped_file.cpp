#include "mapped_file.h"

#include <fcntl.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "check.h"
#include "mlx/allocator.h"

namespace mlx_dsv4 {
namespace {

// MLX's CPU allocator keeps a buffer's size in the word before its data.
constexpr size_t kCpuHeader = sizeof(size_t);

std::system_error file_error(const std::string& path, int error = errno) {
  return std::system_error(error, std::generic_category(), path);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    throw file_error(path);
  }
  struct stat info{};
  void* data = MAP_FAILED;
  if (fstat(file, &info) == 0) {
    if (!S_ISREG(info.st_mode) || info.st_size == 0) {
      close(file);
      throw std::runtime_error(path + " must be a file that holds bytes");
    }
    data = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, file, 0);
  }
  const int error = errno;
  close(file);
  if (data == MAP_FAILED) {
    throw file_error(path, error);
  }
  data_ = static_cast<char*>(data);
  size_ = static_cast<size_t>(info.st_size);
  identity_ = {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino)};
}

MappedFile::~MappedFile() { munmap(data_, size_); }

size_t MappedFile::resident_bytes() const {
  const auto page = static_cast<size_t>(getpagesize());
  constexpr size_t kPagesPerCall = 1 << 16;
  std::vector<unsigned char> states(kPagesPerCall);
  size_t n_pages = 0;
  for (size_t at = 0; at < size_; at += kPagesPerCall * page) {
    const size_t n_bytes = std::min(size_ - at, kPagesPerCall * page);
#ifdef __APPLE__
    const int failed =
        mincore(data_ + at, n_bytes, reinterpret_cast<char*>(states.data()));
#else
    const int failed = mincore(data_ + at, n_bytes, states.data());
#endif
    if (failed) {
      throw file_error(path_);
    }
    const size_t pages = (n_bytes + page - 1) / page;
    n_pages += std::count_if(
        states.begin(),
        states.begin() + static_cast<int64_t>(pages),
        [](unsigned char state) { return state & 1; });
  }
  return std::min(n_pages * page, size_);
}

mx::array MappedFile::view(size_t offset, const std::vector<int>& dims) {
  const mx::Shape shape(dims.begin(), dims.end());
  const size_t n_bytes = checked_bytes("MappedFile.view", dims, 1);
  if (offset < kCpuHeader || offset > size_ || n_bytes > size_ - offset) {
    reject(
        "MappedFile.view",
        "bytes must lie in ",
        kCpuHeader,
        "..",
        size_,
        " of ",
        path_,
        "; got ",
        offset,
        "..",
        offset + n_bytes);
  }
  char* data = data_ + offset;
  auto self = shared_from_this();
  if (!mx::metal::is_available()) {
    mx::allocator::Buffer buffer(data - kCpuHeader);
    return mx::array(
        mx::allocator::Data(buffer, [self](mx::allocator::Buffer) {}), shape, mx::uint8);
  }
  // Metal adopts whole pages; a mapping ends with one.
  const auto page = static_cast<size_t>(getpagesize());
  const size_t shift = reinterpret_cast<uintptr_t>(data) % page;
  const size_t n_pages = (shift + n_bytes + page - 1) / page;
  const auto buffer = mx::allocator::make_buffer(data - shift, n_pages * page);
  if (buffer.ptr() == nullptr) {
    throw std::runtime_error(
        "[MappedFile.view] Metal cannot adopt the pages of " + path_);
  }
  auto release = [self](mx::allocator::Buffer used) { mx::allocator::release(used); };
  mx::array out(mx::allocator::Data(buffer, release), shape, mx::uint8);
  out.copy_shared_buffer(
      out, out.strides(), out.flags(), out.size(), static_cast<int64_t>(shift));
  return out;
}

void bind_mapped_file(nb::module_& m) {
  nb::class_<MappedFile>(m, "MappedFile")
      .def(
          nb::new_([](const nb::bytes& path) {
            return std::make_shared<MappedFile>(std::string(path.c_str(), path.size()));
          }),
          "path"_a)
      .def_prop_ro("size", &MappedFile::size)
      .def_prop_ro("identity", &MappedFile::identity)
      .def(
          "resident_bytes",
          &MappedFile::resident_bytes,
          nb::call_guard<nb::gil_scoped_release>())
      .def("view", &MappedFile::view, "offset"_a, "shape"_a);
}

}  // namespace mlx_dsv4
