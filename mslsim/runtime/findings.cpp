// Findings: kept while a dispatch runs, read through the C interface afterwards.
#include "findings.h"

#include <dlfcn.h>

#include <cstdio>
#include <utility>

#include "dispatch.h"

namespace mslsim {
namespace {

constexpr size_t kMostFindings = 65;

// Offset of an address into the library that holds it, 0 for addresses of this library.
uint64_t offset_in_library(uint64_t address) {
  Dl_info library, here;
  dladdr(reinterpret_cast<void*>(&offset_in_library), &here);
  const bool known =
      address != 0 && dladdr(reinterpret_cast<void*>(address), &library) != 0;
  if (!known || library.dli_fbase == here.dli_fbase) {
    return 0;
  }
  return address - reinterpret_cast<uint64_t>(library.dli_fbase);
}

}  // namespace

void Findings::add(Finding finding) {
  const std::lock_guard lock(mutex_);
  const bool first = seen_.emplace(finding.kind, finding.at, finding.other).second;
  if (first && all_.size() < kMostFindings) {
    all_.push_back(std::move(finding));
  }
}

void report(const char* kind, std::string text, uint64_t at, uint64_t other) {
  current_dispatch->findings.add({kind, std::move(text), at, other});
}

void fail(const char* kind, std::string text, uint64_t at, uint64_t other) {
  report(kind, std::move(text), at, other);
  current_group->failed = true;
  current_dispatch->stop = true;
  leave_fibres(*current_group);
}

std::string described(const msl_thread& thread) {
  char text[128];
  const msl_u32* group = current_group->shape.tgid3;
  snprintf(
      text,
      sizeof text,
      "thread %u (lane %u of SIMD-group %u) of threadgroup (%u,%u,%u)",
      thread.tid,
      thread.lane,
      thread.sgi,
      group[0],
      group[1],
      group[2]);
  return text;
}

}  // namespace mslsim

using namespace mslsim;

extern "C" {

int msl_finding_count(const msl_findings* findings) {
  return findings == nullptr ? 0 : static_cast<int>(findings->all.size());
}

msl_finding msl_finding_at(const msl_findings* findings, int i) {
  const Finding& finding = findings->all[i];
  return {
      finding.kind.c_str(),
      finding.text.c_str(),
      offset_in_library(finding.at),
      offset_in_library(finding.other)};
}

void msl_free_findings(msl_findings* findings) { delete findings; }

}  // extern "C"
