// A file mapped into memory, and MLX arrays that read it in place.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "mlx/mlx.h"

namespace mlx_dsv4 {
namespace mx = mlx::core;

// Read-only mapping of a whole file. Arrays made from it keep it alive.
class MappedFile : public std::enable_shared_from_this<MappedFile> {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  size_t size() const { return size_; }
  // Device and inode.
  std::pair<uint64_t, uint64_t> identity() const { return identity_; }

  // Bytes of the file that are in memory, in whole pages.
  size_t resident_bytes() const;

  // The bytes from `offset` on as a uint8 array that copies nothing.
  mx::array view(size_t offset, const std::vector<int>& dims);

 private:
  std::string path_;
  char* data_ = nullptr;
  size_t size_ = 0;
  std::pair<uint64_t, uint64_t> identity_;
};

void bind_mapped_file(nb::module_& m);

}  // namespace mlx_dsv4
