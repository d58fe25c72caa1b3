# Builds for arm64 macOS on Linux: clang-19, lld-19 and the stand-in SDK of sysroot.py, whose
# folder is given as CMAKE_OSX_SYSROOT.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_VERSION 23.0)  # macOS 14
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_ARCHITECTURES arm64 CACHE STRING "")
set(CMAKE_OSX_DEPLOYMENT_TARGET 14.0 CACHE STRING "")

set(CMAKE_C_COMPILER clang-19)
set(CMAKE_CXX_COMPILER clang++-19)
# Without a version: with one, clang ignores the deployment target.
set(CMAKE_C_COMPILER_TARGET arm64-apple-macos)
set(CMAKE_CXX_COMPILER_TARGET arm64-apple-macos)
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT -fuse-ld=lld)
endforeach()
set(CMAKE_AR llvm-ar-19 CACHE STRING "")
set(CMAKE_RANLIB llvm-ranlib-19 CACHE STRING "")
set(CMAKE_STRIP llvm-strip-19 CACHE STRING "")
set(CMAKE_INSTALL_NAME_TOOL llvm-install-name-tool-19 CACHE STRING "")

# An edit after linking would break the code signature that the linker made.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
