#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <ogg/ogg.h>
#include <sndfile.h>

#include <algorithm>
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

TEST(ImageFactsTest, HeadersTellTheSizeAndTheScans) {
  struct Case {
    const char* name;
    int num_scans;
  };
  for (const Case& test : {Case{"turned.jpg", 1}, Case{"progressive.jpg", 10},
                           Case{"palette.png", 1}, Case{"lossy.webp", 1}}) {
    const std::string file = TestFile(test.name);
    const auto facts = ReadImageFacts(file);
    ASSERT_TRUE(facts.ok()) << test.name << ": " << facts.error().message;
    EXPECT_EQ(facts->num_scans, test.num_scans) << test.name;
    EXPECT_EQ(facts->height * facts->width, 37 * 29) << test.name;
    EXPECT_EQ(facts->scanned_pixels(), 37 * 29 * test.num_scans) << test.name;
    // They are there without the pixels.
    EXPECT_TRUE(ReadImageFacts(file.substr(0, file.size() - 10)).ok()) << test.name;
  }
}

TEST(ImageFactsTest, RefusesWhatDecodingWouldRefuse) {
  for (const char* name : {"turned.jpg", "palette.png", "lossy.webp"}) {
    const auto facts = ReadImageFacts(TestFile(name), {.max_pixels = 37 * 29 - 1});
    ASSERT_FALSE(facts.ok()) << name;
    EXPECT_THAT(facts.error().message, HasSubstr("at most 1072 are taken"));
  }
  for (const char* text : {"", "GIF89a", "\xff\xd8\xff", "\x89PNG\r\n\x1a\n", "RIFFxxxxWEBP"}) {
    EXPECT_FALSE(ReadImageFacts(text).ok()) << text;
  }
}

TEST(ImageFactsTest, ScansBeyondTheLimitAreRefusedBeforeDecoding) {
  const std::string file = TestFile("progressive.jpg");
  EXPECT_TRUE(ReadImageFacts(file, {.max_scans = 10}).ok());
  const auto facts = ReadImageFacts(file, {.max_scans = 9});
  ASSERT_FALSE(facts.ok());
  EXPECT_THAT(facts.error().message, HasSubstr("more than 9 scans"));
  EXPECT_FALSE(DecodeImage(file, {.max_scans = 9}).ok());
  EXPECT_TRUE(DecodeImage(file, {.max_scans = 10}).ok());
}

TEST(ImageFactsTest, FilesBehindAJpegImageAreNoScansOfIt) {
  const std::string file = TestFile("progressive.jpg");
  const std::string twice = file + file;
  EXPECT_EQ(ReadImageFacts(twice)->num_scans, ReadImageFacts(file)->num_scans);
  EXPECT_TRUE(DecodeImage(twice).ok());
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
      {SF_FORMAT_OGG | SF_FORMAT_OPUS, 48000, 2, 0.05},
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

// Where each page of an Ogg file begins, and the file's end.
std::vector<size_t> PageStarts(const std::string& file) {
  constexpr size_t kHeader = 27;  // the last byte: how many lengths of segments follow
  std::vector<size_t> starts = {0};
  while (starts.back() < file.size()) {
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(file.at(at)); };
    const size_t num_segments = byte(starts.back() + kHeader - 1);
    size_t size = kHeader + num_segments;
    for (size_t idx = 0; idx < num_segments; ++idx) size += byte(starts.back() + kHeader + idx);
    starts.push_back(starts.back() + size);
  }
  return starts;
}

// The file with one byte set to another value, and its page's checksum made right again.
std::string WithByte(std::string file, size_t at, char value) {
  file.at(at) = value;
  const std::vector<size_t> starts = PageStarts(file);
  const size_t next = std::upper_bound(starts.begin(), starts.end(), at) - starts.begin();
  auto* const begin = reinterpret_cast<unsigned char*>(file.data());
  const size_t header = 27 + begin[starts[next - 1] + 26];
  ogg_page page = {.header = begin + starts[next - 1],
                   .header_len = static_cast<long>(header),
                   .body = begin + starts[next - 1] + header,
                   .body_len = static_cast<long>(starts[next] - starts[next - 1] - header)};
  ogg_page_checksum_set(&page);
  return file;
}

constexpr std::string_view kId3Tag("ID3\x04\0\0\0\0\0\x05tag..", 15);

struct BrokenOgg {
  std::string file;
  const char* message;
};

// Vorbis files that are broken in ways of their own, each before its first sample.
std::vector<BrokenOgg> BrokenVorbisFiles() {
  const std::string whole = MakeSound(SF_FORMAT_OGG | SF_FORMAT_VORBIS, 16000, 1, 1600);
  const std::vector<size_t> starts = PageStarts(whole);
  const size_t first = starts[1];
  const size_t codebooks = whole.find("\5vorbis");
  const char* const broken[] = {"the audio file's Vorbis headers are broken: number 1 of 3",
                                "the audio file's Vorbis headers are broken: number 2 of 3",
                                "the audio file's Vorbis headers are broken: number 3 of 3"};
  const std::string cut = whole.substr(0, first);
  return {
      {WithByte(whole, whole.find("\1vorbis") + 7, 9), broken[0]},  // its version
      {cut, broken[1]},
      {std::string(kId3Tag) + cut, broken[1]},
      {std::string(kId3Tag) + std::string(kId3Tag) + cut, broken[1]},
      {WithByte(whole, first + 18, 9), broken[1]},  // the second page says it is the tenth
      {WithByte(whole, whole.find("\3vorbis"), 7), broken[1]},
      {WithByte(whole, codebooks, 7), broken[2]},
      {WithByte(whole, codebooks + 8, 0), broken[2]},  // of the first codebook's mark
      {WithByte(whole, 5, 0), "the audio file's first Ogg page is broken"},
      {whole.substr(0, 40), "the audio file's first Ogg page is broken"},
  };
}

TEST(DecodeAudioTest, SaysWhichVorbisHeaderIsBroken) {
  for (const BrokenOgg& broken : BrokenVorbisFiles()) {
    const auto samples = DecodeAudio(broken.file);
    ASSERT_FALSE(samples.ok()) << broken.message;
    EXPECT_EQ(samples.error().message, broken.message);
  }
}

// Under the address sanitizer, whose allocator has no such count, it finds leaks itself.
TEST(DecodeAudioTest, BrokenVorbisHeadersLeaveNoMemoryBehind) {
  constexpr size_t kTimes = 2000;
  for (const BrokenOgg& broken : BrokenVorbisFiles()) {
    EXPECT_FALSE(DecodeAudio(broken.file).ok());
    const size_t before = mallinfo2().uordblks;
    for (size_t time = 0; time < kTimes; ++time) EXPECT_FALSE(DecodeAudio(broken.file).ok());
    EXPECT_LT(mallinfo2().uordblks, before + 16 * kTimes) << broken.message;
  }
}

TEST(DecodeAudioTest, AnOggFileBehindTagsIsThatFile) {
  for (const int codec : {SF_FORMAT_VORBIS, SF_FORMAT_OPUS}) {
    const std::string file = MakeSound(SF_FORMAT_OGG | codec, 16000, 1, 1600);
    const auto samples = DecodeAudio(file);
    ASSERT_TRUE(samples.ok()) << samples.error().message;
    const auto tagged = DecodeAudio(std::string(kId3Tag) + file);
    ASSERT_TRUE(tagged.ok()) << tagged.error().message;
    EXPECT_EQ(*tagged, *samples);
  }
}

}  // namespace
}  // namespace lapidary
