// Faults of kernels: signals become findings.
#pragma once

#include <array>
#include <csignal>

namespace mslsim {

// Sent to a worker that runs for too long.
constexpr int kTimeoutSignal = SIGUSR1;

// Handles the signals of faults while it exists.
class FaultHandlers {
 public:
  FaultHandlers();
  ~FaultHandlers();
  FaultHandlers(const FaultHandlers&) = delete;
  FaultHandlers& operator=(const FaultHandlers&) = delete;

 private:
  static constexpr std::array kSignals = {
      SIGSEGV, SIGBUS, SIGFPE, SIGILL, kTimeoutSignal};
  std::array<struct sigaction, kSignals.size()> before_;
};

}  // namespace mslsim
