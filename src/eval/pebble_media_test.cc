#include "eval/pebble_media.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lapidary {
namespace {

// FNV-1a.
uint64_t Digest(std::span<const uint8_t> bytes) {
  uint64_t digest = 0xCBF29CE484222325;
  for (const uint8_t byte : bytes) digest = (digest ^ byte) * 0x100000001B3;
  return digest;
}

// Digests of what tools/pebble/pictures.py and sounds.py draw and play.
TEST(PebbleMediaTest, EveryFigureIsDrawnAsInTraining) {
  const auto picture_from = [](int first_mask) {
    std::vector<PebbleCell> cells;
    for (int mask = first_mask; mask < std::min(first_mask + 64, kNumPebbleMasks); ++mask) {
      const int at = mask - first_mask;
      cells.push_back({at / kPebbleSide, at % kPebbleSide, mask, mask % kNumPebbleColors});
    }
    return DrawPebblePicture(cells);
  };
  EXPECT_EQ(Digest(picture_from(0).rgb), 0xeccfe85eef590d1f);
  EXPECT_EQ(Digest(picture_from(64).rgb), 0x41811a6a1c4e7425);
}

TEST(PebbleMediaTest, EveryToneIsPlayedAsInTraining) {
  std::vector<int> tones;
  for (int tone = 0; tone < kNumPebbleTones; ++tone) tones.push_back(tone);
  std::vector<uint8_t> bytes;
  for (const float sample : PlayPebbleSound(tones, 73)) {
    const auto value = static_cast<int>(std::lrint(sample * 32768));
    bytes.push_back(static_cast<uint8_t>(value & 0xff));
    bytes.push_back(static_cast<uint8_t>(value >> 8 & 0xff));
  }
  EXPECT_EQ(Digest(bytes), 0x375452f7ab7d1f55);
}

TEST(PebbleMediaTest, TheBundledItemsAreQuestionsAboutPicturesAndSounds) {
  const auto items =
      LoadPebbleMediaItems(LAPIDARY_SOURCE_DIR "/models/pebble-media-eval.jsonl").value();
  ASSERT_EQ(items.size(), size_t{150});
  int num_pictures = 0;
  for (const PebbleMediaItem& item : items) num_pictures += item.is_picture();
  EXPECT_EQ(num_pictures, 100);
  EXPECT_EQ(items.back().tones.size(), size_t{32});
}

TEST(PebbleMediaTest, ItemsOutOfRangeAreRefused) {
  const auto parses = [](const char* drawn) {
    const std::string line =
        fmt::format(R"({{"id": "a", "task": "b", "ask": "c", "answer": "d", {}}})", drawn);
    return PebbleMediaItem::Parse(line, "test").ok();
  };
  EXPECT_TRUE(parses(R"("cells": [[7, 7, 96, 5]])"));
  EXPECT_TRUE(parses(R"("tones": [0, 160], "loudness": 50)"));
  for (const char* drawn :
       {R"("cells": [[8, 0, 1, 1]])", R"("cells": [[0, 0, 97, 1]])", R"("cells": [[0, 0, 1]])",
        R"("cells": [[0, -1, 1, 1]])", R"("cells": [])", R"("cells": 5)", R"("tones": [161])",
        R"("tones": [1], "loudness": 101)", R"("tones": [])", R"("tones": "1")", R"("x": 1)"}) {
    EXPECT_FALSE(parses(drawn)) << drawn;
  }
}

}  // namespace
}  // namespace lapidary
