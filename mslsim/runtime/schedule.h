// Which thread of a threadgroup runs, and when those that wait for each other go on.
#pragma once

#include "threads.h"

namespace mslsim {

// The thread that a threadgroup begins with, in the order of the launch.
msl_thread& first_thread(msl_group& group);

// The kernel has returned for this thread; others run.
[[noreturn]] void end_thread(msl_thread& thread);

}  // namespace mslsim
