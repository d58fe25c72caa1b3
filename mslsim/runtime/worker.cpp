// A worker runs one threadgroup after another; a fault in one ends the dispatch.
#include <ucontext.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include "dispatch.h"
#include "faults.h"
#include "shadow.h"

namespace mslsim {
namespace {

constexpr size_t kSignalStackBytes = 256 << 10;
constexpr unsigned kFlushDenormals = 0x8040;  // of inputs and of results, in MXCSR
constexpr int64_t kNearBytes = 64 << 20;      // a fault farther away is of no buffer
constexpr int kGeneralProtection = 0x80;      // SI_KERNEL: the address is not known

// Where the address lies beside a buffer, if it lies near one.
std::string beside_buffer(uintptr_t address) {
  std::string text;
  int64_t nearest = kNearBytes;
  for (int i = 0; i < MSL_MAX_BUFFERS; ++i) {
    const Buffer& buffer = current_dispatch->buffers[i];
    if (buffer.map == nullptr) {
      continue;
    }
    const auto size = static_cast<int64_t>(buffer.n_bytes);
    const auto offset =
        static_cast<int64_t>(address - reinterpret_cast<uintptr_t>(buffer.base));
    const int64_t distance = offset < 0 ? -offset : std::max<int64_t>(offset - size, 0);
    if (distance < nearest) {
      nearest = distance;
      text = "out-of-bounds or read-only access: offset " + std::to_string(offset) +
             " of buffer " + std::to_string(i) + " (" + std::to_string(size) + " bytes)" +
             (buffer.read_only ? " [read-only]" : "");
    }
  }
  return text;
}

std::string memory_fault(int signal, const siginfo_t& info) {
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  if (info.si_code == kGeneralProtection) {
    return "general protection fault (misaligned or wild pointer)";
  }
  if (address < kPage) {
    return "null pointer access (unbound buffer?)";
  }
  if (is_in_stacks(*current_group, address)) {
    return "fibre stack overflow";
  }
  if (std::string text = beside_buffer(address); !text.empty()) {
    return text;
  }
  char text[64];
  const char* what = signal == SIGFPE ? "arithmetic fault" : "memory fault";
  snprintf(text, sizeof text, "%s at address %#lx", what, address);
  return text;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  msl_group* group = current_group;
  if (group == nullptr || !group->in_fibre) {
    ::signal(signal, SIG_DFL);
    raise(signal);
    return;
  }
  const char* kind = "fault";
  std::string text;
  if (signal == kTimeoutSignal) {
    kind = "timeout";
    text = "timeout";
  } else if (signal == SIGILL) {
    kind = "ub";
    text = "access outside a thread-local array (or unreachable code)";
  } else {
    text = memory_fault(signal, *info);
  }
  text += " by " + (__msl_cur == nullptr ? "?" : described(*__msl_cur));
  const uint64_t pc = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  report(kind, text, pc + 1);  // as if it were a return address
  group->failed = true;
  current_dispatch->stop = true;
  siglongjmp(group->after_fault, 1);
}

// Signals of a stack overflow cannot be handled on that stack.
class SignalStack {
 public:
  SignalStack() : memory_(new char[kSignalStackBytes]) {
    stack_t stack{};
    stack.ss_sp = memory_.get();
    stack.ss_size = kSignalStackBytes;
    sigaltstack(&stack, &before_);
  }
  ~SignalStack() { sigaltstack(&before_, nullptr); }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;
  stack_t before_;
};

void run_one(msl_group& group, uint32_t number) {
  reset_group(group, number);
  if (sigsetjmp(group.after_fault, 1) == 0) {
    if (allocate_arguments(group)) {
      run_group(group);
    } else {
      current_dispatch->stop = true;
    }
  }
  group.in_fibre = false;
  __msl_cur = nullptr;
}

}  // namespace

FaultHandlers::FaultHandlers() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &before_[i]);
  }
}

FaultHandlers::~FaultHandlers() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
}

void run_groups(msl_group& group) {
  Dispatch& dispatch = *current_dispatch;
  current_group = &group;
  group.kernel = dispatch.launch.kernel;
  if (dispatch.launch.check) {
    if (group.shadow == nullptr) {
      group.shadow = map_cells(kThreadgroupArena);
    }
    forget_accesses(group.shadow, kThreadgroupArena);
  }
  const SignalStack stack;
  const unsigned control = _mm_getcsr();
  if (dispatch.launch.flush_denormals) {
    _mm_setcsr(control | kFlushDenormals);
  }
  while (!dispatch.stop) {
    const uint32_t i = dispatch.next++;
    if (i >= dispatch.order.size()) {
      break;
    }
    run_one(group, dispatch.order[i]);
    if (group.failed) {
      break;
    }
  }
  _mm_setcsr(control);
  current_group = nullptr;
}

}  // namespace mslsim
