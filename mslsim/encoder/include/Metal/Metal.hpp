// The few metal-cpp types that launching a kernel needs, over the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace NS {
using UInteger = std::size_t;
}

namespace MTL {

struct Size {
  Size() = default;
  Size(NS::UInteger width, NS::UInteger height, NS::UInteger depth)
      : width(width), height(height), depth(depth) {}

  NS::UInteger width;
  NS::UInteger height;
  NS::UInteger depth;
};

// Values of metal-cpp, for the types that function constants have.
enum DataType : NS::UInteger {
  DataTypeFloat = 3,
  DataTypeHalf = 16,
  DataTypeInt = 29,
  DataTypeUInt = 33,
  DataTypeShort = 37,
  DataTypeUShort = 41,
  DataTypeChar = 45,
  DataTypeUChar = 49,
  DataTypeBool = 53,
};

class Function;
class Library;
class ComputePipelineState;

}  // namespace MTL
