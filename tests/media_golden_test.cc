// Preprocessing against transformers' processors (tools/make_media_goldens.py).
#include <gtest/gtest.h>

#include <cmath>

#include "base/read_file.h"
#include "media/decode_audio.h"
#include "media/decode_image.h"
#include "media/log_mel.h"
#include "media/patches.h"
#include "media/resize.h"
#include "tests/golden_file.h"

namespace lapidary {
namespace {

std::string TestFile(const std::string& name) {
  return ReadFile(std::string(LAPIDARY_SOURCE_DIR) + "/tests/data/media/" + name, 1 << 20).value();
}

int64_t Digest(const void* data, size_t num_bytes) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t idx = 0; idx < num_bytes; ++idx) hash = (hash ^ bytes[idx]) * 0x100000001b3u;
  return static_cast<int64_t>(hash);
}

Image Noise(int height, int width) {
  Image image{height, width, std::vector<uint8_t>(size_t{3} * height * width)};
  uint32_t state = 12345;
  for (uint8_t& value : image.rgb) {
    state = state * 1664525 + 1013904223;
    value = static_cast<uint8_t>(state >> 24);
  }
  return image;
}

class MediaGoldenTest : public testing::Test {
 protected:
  const Golden golden_ = OpenGolden("media-preprocess");
};

TEST_F(MediaGoldenTest, DecodersGiveTheReferencesPixels) {
  int num_files = 0;
  for (const SafetensorsEntry& entry : golden_.header.entries) {
    const std::string prefix = "pixels.";
    if (!entry.name.starts_with(prefix)) continue;
    const std::string name = entry.name.substr(prefix.size());
    const auto image = DecodeImage(TestFile(name));
    ASSERT_TRUE(image.ok()) << name << ": " << image.error().message;
    ASSERT_EQ((std::vector<int64_t>{image->height, image->width, 3}), entry.shape) << name;
    const uint8_t* expected = golden_.Tensor(entry.name).As<uint8_t>();
    for (size_t idx = 0; idx < image->rgb.size(); ++idx) {
      ASSERT_EQ(int{image->rgb[idx]}, int{expected[idx]}) << name << " value " << idx;
    }
    ++num_files;
  }
  EXPECT_GE(num_files, 11);
}

TEST_F(MediaGoldenTest, ResizedPicturesAreBitForBitTorchvisions) {
  const std::vector<int32_t> sizes = golden_.Ids("resize.sizes");
  const int64_t* digests = golden_.Tensor("resize.digests").As<int64_t>();
  for (size_t idx = 0; idx < sizes.size() / 4; ++idx) {
    const int32_t* size = sizes.data() + 4 * idx;
    const Image resized = ResizeBicubic(Noise(size[0], size[1]), {size[2], size[3]});
    EXPECT_EQ(Digest(resized.rgb.data(), resized.rgb.size()), digests[idx])
        << size[0] << " x " << size[1] << " to " << size[2] << " x " << size[3];
  }
}

TEST_F(MediaGoldenTest, PatchesAreBitForBitTheProcessors) {
  const Image image = DecodeImage(TestFile("turned.jpg")).value();
  const PatchGrid grid;
  const ImageSize size = TargetSize({image.height, image.width}, grid, 9 * 70).value();
  const ImagePatches patches = CutPatches(ResizeBicubic(image, size), grid.patch);
  const std::vector<int32_t> shape = golden_.Ids("patches.shape");
  ASSERT_EQ(patches.num_patches(), shape[0]);
  ASSERT_EQ(patches.patch_values(), shape[1]);
  const float* first = golden_.Tensor("patches.first").As<float>();
  for (int idx = 0; idx < patches.patch_values(); ++idx) ASSERT_EQ(patches.values[idx], first[idx]);
  EXPECT_EQ(Digest(patches.values.data(), patches.values.size() * sizeof(float)),
            *golden_.Tensor("patches.digest").As<int64_t>());
}

TEST_F(MediaGoldenTest, MelFramesAreTheExtractors) {
  constexpr double kTolerance = 1e-4;
  for (const std::string name : {"tune.wav", "short.wav"}) {
    const std::vector<float> mel = LogMel(DecodeAudio(TestFile(name)).value());
    const TensorView expected = golden_.Tensor("mel." + name);
    ASSERT_EQ(static_cast<int64_t>(mel.size()), expected.num_elements());
    for (size_t idx = 0; idx < mel.size(); ++idx) {
      ASSERT_NEAR(mel[idx], expected.As<float>()[idx], kTolerance) << name << " value " << idx;
    }
  }
}

}  // namespace
}  // namespace lapidary
