// Images as the vision encoders' preprocessing takes them: 8-bit RGB, whatever file they came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lapidary {

struct Image {
  int height = 0;
  int width = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]

  const uint8_t* Row(int row) const { return rgb.data() + size_t{3} * width * row; }
  uint8_t* Row(int row) { return rgb.data() + size_t{3} * width * row; }
};

}  // namespace lapidary
