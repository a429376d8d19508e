#include "session/prompt_media.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

using Ids = std::vector<int32_t>;

ModelPlan MultimodalPlan() {
  ModelPlan plan;
  plan.architecture = "Gemma4ForConditionalGeneration";
  plan.vocab_size = 100;
  plan.media_tokens = MediaTokens{.image = 50,
                                  .audio = 200,
                                  .video = 52,
                                  .begin_image = 60,
                                  .end_image = 61,
                                  .begin_audio = 62,
                                  .end_audio = 63,
                                  .pad = 7};
  return plan;
}

NamedMedium Medium(const char* name, MediaKind kind, int num_tokens, uint64_t digest) {
  EncodedMedium medium;
  medium.kind = kind;
  medium.num_tokens = num_tokens;
  medium.digest.low = digest;
  return {name, medium};
}

PromptMedia TwoImagesAndASound() {
  return {{Medium("a.png", MediaKind::kImage, 2, 1), Medium("b.png", MediaKind::kImage, 1, 2)},
          {Medium("c.wav", MediaKind::kAudio, 3, 3)}};
}

TEST(PromptMediaTest, RunsGetTheNextMediumOfTheirKind) {
  Ids ids = {9, 50, 50, 8, 200, 200, 200, 50, 9};
  const PromptMedia media = TwoImagesAndASound();
  const auto placed = PlaceMedia(MultimodalPlan(), ids, media);
  ASSERT_TRUE(placed.ok()) << placed.error().message;
  ASSERT_EQ(placed->runs->size(), size_t{3});
  EXPECT_EQ((*placed->runs)[0].position, 1);
  EXPECT_EQ((*placed->runs)[0].length, 2);
  EXPECT_TRUE((*placed->runs)[0].is_image);
  EXPECT_EQ((*placed->runs)[1].position, 4);
  EXPECT_FALSE((*placed->runs)[1].is_image);
  EXPECT_EQ((*placed->runs)[2].position, 7);
  EXPECT_EQ(placed->digests[1].low, uint64_t{3});
  EXPECT_EQ(placed->digests[2].position, 7);
  EXPECT_EQ(placed->digests[2].low, uint64_t{2});
  // Only the sound's id has no row in the vocabulary.
  ReplaceIdsBeyondVocabulary(MultimodalPlan(), *placed, ids);
  EXPECT_EQ(ids, (Ids{9, 50, 50, 8, 7, 7, 7, 50, 9}));
}

TEST(PromptMediaTest, ErrorsNameBothNumbers) {
  const auto problem = [](const Ids& ids, const PromptMedia& media) {
    const auto placed = PlaceMedia(MultimodalPlan(), ids, media);
    return placed.ok() ? std::string("none") : placed.error().message;
  };
  const PromptMedia one = {{Medium("a.png", MediaKind::kImage, 2, 1)}, {}};
  EXPECT_EQ(problem({50, 50, 50}, one),
            "a.png is 2 soft tokens, but its run of the image token 50 has 3");
  EXPECT_EQ(problem({50, 50, 1, 50}, one),
            "the prompt has 2 runs of the image token 50, but 1 image files are given");
  EXPECT_EQ(problem({1}, one),
            "the prompt has 0 runs of the image token 50, but 1 image files are given");
  EXPECT_EQ(problem({200}, {}),
            "the prompt has 1 runs of the audio token 200, but 0 audio files are given");
  EXPECT_EQ(problem({1, 2}, {}), "none");
  ModelPlan text = MultimodalPlan();
  text.media_tokens.reset();
  EXPECT_FALSE(PlaceMedia(text, Ids{1}, one).ok());
}

TEST(PromptMediaTest, PlaceholdersAreExpandedBetweenBeginAndEnd) {
  const auto expanded =
      ExpandPlaceholders(MultimodalPlan(), Ids{9, 50, 50, 200}, TwoImagesAndASound());
  ASSERT_TRUE(expanded.ok()) << expanded.error().message;
  EXPECT_EQ(*expanded, (Ids{9, 60, 50, 50, 61, 60, 50, 61, 62, 200, 200, 200, 63}));
  const auto missing = ExpandPlaceholders(MultimodalPlan(), Ids{9, 50, 200}, TwoImagesAndASound());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().message,
            "the prompt has 1 occurrences of the image token 50, but 2 image files are given");
}

TEST(PromptMediaTest, FramesOfAVideoBecomeItsTokensAmongImages) {
  PromptMedia media = TwoImagesAndASound();
  media.images[0].is_video_frame = true;
  const auto expanded = ExpandPlaceholders(MultimodalPlan(), Ids{50, 9, 50, 200}, media);
  ASSERT_TRUE(expanded.ok()) << expanded.error().message;
  EXPECT_EQ(*expanded, (Ids{60, 52, 52, 61, 9, 60, 50, 61, 62, 200, 200, 200, 63}));
  const auto placed = PlaceMedia(MultimodalPlan(), *expanded, media);
  ASSERT_TRUE(placed.ok()) << placed.error().message;
  ASSERT_EQ(placed->runs->size(), size_t{3});
  EXPECT_EQ((*placed->runs)[0].position, 1);
  EXPECT_TRUE((*placed->runs)[0].is_image);  // its tokens see each other, as an image's do
  EXPECT_EQ(placed->digests[0].low, uint64_t{1});
  EXPECT_EQ((*placed->runs)[1].position, 6);
  EXPECT_EQ(placed->digests[1].low, uint64_t{2});
  const auto without = PlaceMedia(MultimodalPlan(), Ids{52}, {});
  ASSERT_FALSE(without.ok());
  EXPECT_EQ(without.error().message,
            "the prompt has 1 runs of the video token 52, but 0 video files are given");
}

}  // namespace
}  // namespace lapidary
