// A GGUF file from anywhere: whatever parses must describe values and ranges inside the file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "gguf/gguf_header.h"
#include "tensor/tensor_view.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header =
      lapidary::ParseGguf(std::as_bytes(std::span<const uint8_t>(data, size)), "fuzz.gguf");
  if (!header.ok()) {
    CHECK(!header.error().message.empty() && header.error().message.size() < 4000);
    return 0;
  }
  for (const auto& [key, value] : header->metadata) {
    CHECK_LE(value.size(), size);
    static_cast<void>(value.Ints());
    static_cast<void>(value.Numbers());
    const char* end = reinterpret_cast<const char*>(data) + size;
    for (const std::string_view text : value.Strings().value_or(std::vector<std::string_view>())) {
      CHECK(text.data() >= reinterpret_cast<const char*>(data) && text.data() + text.size() <= end);
    }
  }
  uint64_t previous_end = 0;
  for (const lapidary::GgufTensor& tensor : header->tensors) {
    CHECK_LE(previous_end, tensor.begin);
    CHECK_LE(tensor.begin, tensor.end);
    CHECK_LE(tensor.end, size);
    const lapidary::TensorView view{nullptr, tensor.dtype, tensor.shape};
    CHECK_EQ(static_cast<uint64_t>(view.num_bytes()), tensor.end - tensor.begin);
    previous_end = tensor.end;
  }
  return 0;
}
