#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sndfile.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>

#include "base/read_file.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

std::string TestFile(const std::string& name) {
  return ReadFile(std::string(LAPIDARY_SOURCE_DIR) + "/tests/data/media/" + name, 1 << 20).value();
}

TEST(DecodeImageTest, RefusesWhatIsTooLargeBeforeDecoding) {
  for (const char* name : {"turned.jpg", "palette.png", "lossy.webp"}) {
    const std::string file = TestFile(name);
    const auto many_pixels = DecodeImage(file, {.max_pixels = 37 * 29 - 1});
    ASSERT_FALSE(many_pixels.ok()) << name;
    EXPECT_THAT(many_pixels.error().message, HasSubstr("at most 1072 are taken"));
    const auto many_bytes = DecodeImage(file, {.max_bytes = 100});
    ASSERT_FALSE(many_bytes.ok()) << name;
    EXPECT_THAT(many_bytes.error().message, HasSubstr("at most 100 are taken"));
    EXPECT_TRUE(DecodeImage(file, {.max_pixels = 37 * 29}).ok());
  }
}

TEST(DecodeImageTest, RefusesOtherFilesAndBrokenOnes) {
  for (const char* text : {"", "GIF89a", "\xff\xd8\xff", "\x89PNG\r\n\x1a\n", "RIFFxxxxWEBP"}) {
    EXPECT_FALSE(DecodeImage(text).ok()) << text;
  }
  for (const char* name : {"mirrored.png", "alpha.webp"}) {
    const std::string file = TestFile(name);
    EXPECT_FALSE(DecodeImage(file.substr(0, file.size() / 2)).ok()) << name;
  }
}

// A file of `rate` Hz with the same tone in every channel.
std::string MakeSound(int format, int rate, int num_channels, int num_frames) {
  struct Output {
    std::string bytes;
    size_t position = 0;
  } output;
  SF_VIRTUAL_IO io = {};
  io.get_filelen = [](void* user) {
    return static_cast<sf_count_t>(static_cast<Output*>(user)->bytes.size());
  };
  io.seek = [](sf_count_t offset, int whence, void* user) {
    auto* out = static_cast<Output*>(user);
    const size_t base = whence == SEEK_SET   ? 0
                        : whence == SEEK_CUR ? out->position
                                             : out->bytes.size();
    out->position = base + static_cast<size_t>(offset);
    return static_cast<sf_count_t>(out->position);
  };
  io.read = [](void* data, sf_count_t count, void* user) {
    auto* out = static_cast<Output*>(user);
    const size_t num_bytes =
        std::min(static_cast<size_t>(count), out->bytes.size() - out->position);
    std::memcpy(data, out->bytes.data() + out->position, num_bytes);
    out->position += num_bytes;
    return static_cast<sf_count_t>(num_bytes);
  };
  io.write = [](const void* data, sf_count_t count, void* user) {
    auto* out = static_cast<Output*>(user);
    const size_t end = out->position + static_cast<size_t>(count);
    if (end > out->bytes.size()) out->bytes.resize(end);
    std::memcpy(out->bytes.data() + out->position, data, static_cast<size_t>(count));
    out->position = end;
    return count;
  };
  io.tell = [](void* user) {
    return static_cast<sf_count_t>(static_cast<Output*>(user)->position);
  };
  SF_INFO info = {.frames = 0,
                  .samplerate = rate,
                  .channels = num_channels,
                  .format = format,
                  .sections = 0,
                  .seekable = 0};
  SNDFILE* file = sf_open_virtual(&io, SFM_WRITE, &info, &output);
  CHECK(file != nullptr) << sf_strerror(nullptr);
  std::vector<float> frames(size_t{1} * num_frames * num_channels);
  for (size_t idx = 0; idx < frames.size(); ++idx) {
    const double time = static_cast<double>(idx / num_channels) / rate;
    frames[idx] = static_cast<float>(0.5 * std::sin(2.0 * std::numbers::pi * 440.0 * time));
  }
  CHECK_EQ(sf_writef_float(file, frames.data(), num_frames), num_frames);
  sf_close(file);
  return output.bytes;
}

TEST(DecodeAudioTest, ReadsEveryKindOfFileAsMonoAt16Kilohertz) {
  struct Case {
    int format;
    int rate;
    int num_channels;
    double tolerance;
  };
  const std::vector<Case> cases = {
      {SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, 1e-4},
      {SF_FORMAT_WAV | SF_FORMAT_FLOAT, 44100, 2, 1e-3},
      {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 8000, 3, 1e-3},
      {SF_FORMAT_OGG | SF_FORMAT_VORBIS, 16000, 1, 0.05},
      {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 48000, 2, 0.05},
  };
  for (const Case& test : cases) {
    const auto samples =
        DecodeAudio(MakeSound(test.format, test.rate, test.num_channels, test.rate));
    ASSERT_TRUE(samples.ok()) << samples.error().message;
    // A second; coded files bring some silence of their own.
    EXPECT_GE(samples->size(), size_t{16000}) << std::hex << test.format;
    EXPECT_LE(samples->size(), size_t{18500}) << std::hex << test.format;
    // The tone's loudness, away from the ends.
    double energy = 0.0;
    for (int idx = 4000; idx < 12000; ++idx) energy += (*samples)[idx] * (*samples)[idx];
    EXPECT_NEAR(std::sqrt(energy / 8000), 0.5 / std::numbers::sqrt2, test.tolerance)
        << std::hex << test.format;
  }
}

TEST(DecodeAudioTest, SamplesOf16BitsAreThirtyTwoThousandths) {
  const std::string file = TestFile("short.wav");
  const auto samples = DecodeAudio(file);
  ASSERT_TRUE(samples.ok()) << samples.error().message;
  ASSERT_EQ(samples->size(), size_t{1500});
  const size_t data = file.size() - 2 * samples->size();
  for (size_t idx = 0; idx < samples->size(); ++idx) {
    int16_t value = 0;
    std::memcpy(&value, file.data() + data + 2 * idx, sizeof(value));
    ASSERT_EQ((*samples)[idx], static_cast<float>(value) / 32768.0f) << idx;
  }
}

TEST(DecodeAudioTest, RefusesSamplesThatAreNoNumbers) {
  std::string file = MakeSound(SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000, 1, 1000);
  ASSERT_TRUE(DecodeAudio(file).ok());
  for (const float sample :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1e30f}) {
    std::memcpy(file.data() + file.size() - 2000, &sample, sizeof(sample));
    const auto samples = DecodeAudio(file);
    ASSERT_FALSE(samples.ok()) << sample;
    EXPECT_EQ(samples.error().message,
              "the audio file holds samples that are no numbers, or far too large");
  }
}

TEST(DecodeAudioTest, RefusesLongAndBrokenFiles) {
  const std::string file = MakeSound(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, 48000);
  const auto too_long = DecodeAudio(file, {.max_seconds = 2});
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().message, "the audio is longer than 2 seconds");
  EXPECT_FALSE(DecodeAudio(file, {.max_bytes = 1000}).ok());
  EXPECT_FALSE(DecodeAudio("no sound").ok());
  EXPECT_FALSE(DecodeAudio(file.substr(0, 30)).ok());
}

}  // namespace
}  // namespace lapidary
