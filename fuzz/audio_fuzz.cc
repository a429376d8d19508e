// A sound from anywhere: whatever decodes is no longer than the limit. Ogg files are tried again
// with right checksums, which no mutation keeps.
#include <ogg/ogg.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "media/decode_audio.h"

namespace {

void Decode(std::string_view file) {
  const lapidary::AudioLimits limits{.max_bytes = 1 << 20, .max_seconds = 5};
  const auto samples = lapidary::DecodeAudio(file, limits);
  if (!samples.ok()) {
    CHECK(!samples.error().message.empty() && samples.error().message.size() < 1000);
    return;
  }
  for (const float sample : *samples) CHECK(std::isfinite(sample));
  // Resampling may add the filter's tail.
  CHECK_LE(samples->size(), size_t{lapidary::kAudioSampleRate} * (limits.max_seconds + 1));
}

// Every page that is there to its end gets the checksum it should have.
std::string WithChecksums(std::string file) {
  constexpr size_t kHeader = 27;  // the last byte: how many lengths of segments follow
  for (size_t at = file.find("OggS"); at != std::string::npos; at = file.find("OggS", at + 4)) {
    auto* const page = reinterpret_cast<unsigned char*>(file.data()) + at;
    const size_t left = file.size() - at;
    if (left < kHeader || left < kHeader + page[kHeader - 1]) continue;
    const size_t header = kHeader + page[kHeader - 1];
    size_t body = 0;
    for (size_t idx = kHeader; idx < header; ++idx) body += page[idx];
    if (left < header + body) continue;
    ogg_page summed = {.header = page,
                       .header_len = static_cast<long>(header),
                       .body = page + header,
                       .body_len = static_cast<long>(body)};
    ogg_page_checksum_set(&summed);
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  Decode(file);
  if (file.find("OggS") != std::string_view::npos) Decode(WithChecksums(std::string(file)));
  return 0;
}
