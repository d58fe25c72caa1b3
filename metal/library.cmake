# mlx_dsv4.metallib: the kernels at the end of each shader, compiled ahead of time where Xcode's
# Metal compiler is. Elsewhere, and for every other kernel, the extension compiles the sources that
# it carries, on first use. Both compile without fast maths.

# MSL 3.1 is what macOS 14 runs, the lowest release that MLX runs on.
set(METAL_FLAGS -std=metal3.1 -mmacosx-version-min=14.0 -fno-fast-math -Wall -Wextra)

# Found is not enough: Xcode has a program of this name that only says what to download.
find_program(XCRUN xcrun)
set(METAL_ANSWER 1)
if(XCRUN)
  execute_process(COMMAND "${XCRUN}" -sdk macosx metal --version
                  RESULT_VARIABLE METAL_ANSWER OUTPUT_QUIET ERROR_QUIET)
endif()
if(NOT METAL_ANSWER EQUAL 0)
  message(STATUS "Shaders: compiled on first use, since xcrun finds no Metal compiler")
  return()
endif()
message(STATUS "Shaders: compiled ahead of time into mlx_dsv4.metallib")

foreach(family IN LISTS FAMILIES)
  set(shader "${CMAKE_CURRENT_LIST_DIR}/${family}.metal")
  add_custom_command(OUTPUT ${family}.air
    COMMAND "${XCRUN}" -sdk macosx metal ${METAL_FLAGS} -DDSV4_EVERY_KERNEL
      -c "${shader}" -o ${family}.air
    DEPENDS "${shader}" ${SHADER_HEADERS} VERBATIM)
  list(APPEND METAL_OBJECTS ${family}.air)
endforeach()
add_custom_command(OUTPUT mlx_dsv4.metallib
  COMMAND "${XCRUN}" -sdk macosx metallib ${METAL_OBJECTS} -o mlx_dsv4.metallib
  DEPENDS ${METAL_OBJECTS} VERBATIM)
add_custom_target(metal_library ALL DEPENDS mlx_dsv4.metallib)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/mlx_dsv4.metallib" DESTINATION mlx_dsv4)
