// A safetensors file from anywhere: whatever parses must describe ranges inside the file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = lapidary::ParseSafetensors(
      std::as_bytes(std::span<const uint8_t>(data, size)), "fuzz.safetensors");
  if (!header.ok()) {
    CHECK(!header.error().message.empty() && header.error().message.size() < 2000);
    return 0;
  }
  uint64_t previous_end = 0;
  for (const lapidary::SafetensorsEntry& entry : header->entries) {
    CHECK_LE(previous_end, entry.begin);
    CHECK_LE(entry.begin, entry.end);
    CHECK_LE(entry.end, size);
    const lapidary::TensorView view{nullptr, entry.dtype, entry.shape};
    CHECK_EQ(static_cast<uint64_t>(view.num_bytes()), entry.end - entry.begin);
    previous_end = entry.end;
  }
  if (!header->entries.empty()) CHECK_EQ(previous_end, size);
  return 0;
}
