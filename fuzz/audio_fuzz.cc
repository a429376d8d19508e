// A sound from anywhere: whatever decodes is no longer than the limit.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "media/decode_audio.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lapidary::AudioLimits limits{.max_bytes = 1 << 20, .max_seconds = 5};
  const auto samples = lapidary::DecodeAudio({reinterpret_cast<const char*>(data), size}, limits);
  if (!samples.ok()) {
    CHECK(!samples.error().message.empty() && samples.error().message.size() < 1000);
    return 0;
  }
  for (const float sample : *samples) CHECK(std::isfinite(sample));
  // Resampling may add the filter's tail.
  CHECK_LE(samples->size(), size_t{lapidary::kAudioSampleRate} * (limits.max_seconds + 1));
  return 0;
}
