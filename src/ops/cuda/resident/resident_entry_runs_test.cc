#include "ops/cuda/resident/resident_entry_runs.h"

#include <gtest/gtest.h>

#include <set>

#include "ops/cuda/resident/resident_tuning.h"

namespace lapidary::cuda {
namespace {

constexpr int kKeys = 64;  // the most of a round

class EntryRunsTest : public testing::TestWithParam<int> {
 protected:
  const int slot_bytes_ = kResidentTunings[GetParam()].slot_bytes;
};

TEST_P(EntryRunsTest, EntriesLieApartInTheirSlots) {
  for (const int entry_len : {512, 640, 1024}) {
    const EntryRuns runs(slot_bytes_, entry_len);
    std::set<int> taken;  // pieces of 16 bytes, of all slots
    for (int idx = 0; idx < kKeys; ++idx) {
      const int key = runs.KeyOf(idx);
      ASSERT_LT(runs.SlotOfKey(key), runs.num_slots(kKeys));
      const int place = runs.PlaceOfKey(key);
      ASSERT_EQ(place % 16, 0);
      ASSERT_LE(place + 2 * entry_len, slot_bytes_);
      for (int at = place; at < place + 2 * entry_len; at += 16) {
        EXPECT_TRUE(taken.insert(runs.SlotOfKey(key) * slot_bytes_ + at).second);
      }
    }
    EXPECT_EQ(taken.size(), kKeys * 2 * entry_len / 16);
  }
}

TEST_P(EntryRunsTest, ARunIsOnePieceOfAPage) {
  for (const int entry_len : {512, 640, 1024}) {
    const EntryRuns runs(slot_bytes_, entry_len);
    for (int key = 0; key < kKeys; ++key) {
      const int first = key / runs.keys() * runs.keys();
      EXPECT_EQ(runs.SlotOfKey(key), runs.SlotOfKey(first));
      EXPECT_EQ(runs.PlaceOfKey(key),
                runs.PlaceOf(first / runs.keys(), first / runs.keys() % runs.per_slot()) +
                    (key - first) * 2 * entry_len);
    }
  }
}

TEST_P(EntryRunsTest, LanesThatReadTogetherMeetDifferentBanks) {
  const EntryRuns runs(slot_bytes_, 640);
  // Slots for models without such entries may be too small for long runs.
  if (GetParam() % kTiledTunings < 2) return;
  ASSERT_EQ(runs.keys(), EntryRuns::kLongKeys);
  const auto bank = [&](int idx, int offset) {
    return (runs.PlaceOfKey(runs.KeyOf(idx)) + offset) % 128;
  };
  for (int first = 0; first < kKeys; first += 8) {
    for (int pair = 0; pair < 4; ++pair) {  // scores: four lanes of each of two keys
      std::set<int> banks;
      for (int lane = 0; lane < 8; ++lane) {
        banks.insert(bank(first + 2 * pair + lane / 4, lane % 4 * 16));
      }
      EXPECT_EQ(banks.size(), 8);
    }
    for (int odd = 0; odd < 2; ++odd) {  // values: two lanes of each of four keys
      std::set<int> banks;
      for (int lane = 0; lane < 8; ++lane) {
        banks.insert(bank(first + 2 * (lane % 4) + odd, lane / 4 * 16));
      }
      EXPECT_EQ(banks.size(), 8);
    }
  }
}

TEST_P(EntryRunsTest, LongRunsNeedNoMoreSlots) {
  constexpr int kFewKeys = 32;
  for (const int entry_len : {640, 1024}) {
    const int per_slot = slot_bytes_ / (2 * entry_len + 16);
    EXPECT_LE(EntryRuns(slot_bytes_, entry_len).num_slots(kFewKeys),
              (kFewKeys + per_slot - 1) / per_slot);
  }
}

INSTANTIATE_TEST_SUITE_P(Tunings, EntryRunsTest, testing::Range(0, kNumResidentTunings));

}  // namespace
}  // namespace lapidary::cuda
