#include "engine/step_cost.h"

#include <gtest/gtest.h>

#include <random>

namespace lapidary {
namespace {

StepShape Step(int num_decodes, int decode_len, int chunk_rows, int chunk_begin) {
  StepShape shape;
  for (int idx = 0; idx < num_decodes; ++idx) shape.AddDecode(1, decode_len);
  if (chunk_rows > 0) shape.AddChunk(chunk_rows, chunk_begin);
  return shape;
}

// A device: what it really takes.
double TrueMs(const StepShape& shape, double slowness = 1.0) {
  return slowness * (20.0 + 0.05 * shape.num_rows() + 2e-5 * shape.num_decode_keys +
                     1e-6 * shape.num_chunk_keys);
}

TEST(StepCost, ServedStepsTeachWhatOthersWillCost) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(0.95, 1.05);
  StepCost cost;
  EXPECT_FALSE(cost.is_known());
  for (int step = 0; step < 200; ++step) {
    const int num_decodes = 1 + static_cast<int>(random() % 100);
    const int chunk_rows = random() % 2 == 0 ? static_cast<int>(random() % 2048) : 0;
    const StepShape shape = Step(num_decodes, 100 + static_cast<int>(random() % 4000), chunk_rows,
                                 static_cast<int>(random() % 100000));
    cost.Observe(shape, TrueMs(shape) * noise(random));
  }
  EXPECT_TRUE(cost.is_known());
  for (const StepShape& shape : {Step(1, 100, 0, 0), Step(64, 2000, 0, 0), Step(10, 500, 512, 0),
                                 Step(100, 1000, 2048, 60000)}) {
    EXPECT_NEAR(cost.Milliseconds(shape) / TrueMs(shape), 1.0, 0.1) << cost.ToString();
  }
}

TEST(StepCost, RowsWithinATimeTakeThatTime) {
  std::mt19937 random(2);
  StepCost cost;
  for (int step = 0; step < 300; ++step) {
    const int chunk_rows = step % 8 == 0 ? 0 : static_cast<int>(random() % 2048);
    const StepShape shape = Step(1 + static_cast<int>(random() % 50), 1000, chunk_rows,
                                 static_cast<int>(random() % 100000));
    cost.Observe(shape, TrueMs(shape));
  }
  for (const int begin : {0, 8000, 100000}) {
    const int num_rows = cost.RowsWithin(30.0, begin, 1 << 20);
    const double added = TrueMs(Step(1, 1000, num_rows, begin)) - TrueMs(Step(1, 1000, 0, 0));
    EXPECT_NEAR(added, 30.0, 3.0) << begin << ": " << num_rows;
  }
  EXPECT_EQ(cost.RowsWithin(30.0, 0, 7), 7);
  EXPECT_EQ(cost.RowsWithin(0.0, 0, 7), 0);
}

// Only decodes have run when the first prompt comes: the guess is far off, but not for long.
TEST(StepCost, AFewStepsWithChunksCorrectTheFirstGuess) {
  StepCost cost;
  for (int step = 0; step < 100; ++step)
    cost.Observe(Step(1, 500, 0, 0), TrueMs(Step(1, 500, 0, 0)));
  int num_rows = 0;
  for (int step = 0; step < 5; ++step) {
    num_rows = std::max(16, cost.RowsWithin(30.0, 0, 2048));
    const StepShape shape = Step(1, 500, num_rows, 0);
    cost.Observe(shape, TrueMs(shape));
  }
  EXPECT_NEAR(num_rows, 600, 100) << cost.ToString();
}

TEST(StepCost, AHiccupIsForgottenAndASlowerDeviceIsLearnt) {
  StepCost cost;
  const auto observe = [&](int count, double slowness) {
    std::mt19937 random(3);
    for (int step = 0; step < count; ++step) {
      const StepShape shape =
          Step(1 + static_cast<int>(random() % 50), 1000, static_cast<int>(random() % 1024), 0);
      cost.Observe(shape, TrueMs(shape, slowness));
    }
  };
  const StepShape probe = Step(20, 1000, 512, 0);
  observe(100, 1.0);
  cost.Observe(probe, 100.0 * TrueMs(probe));
  observe(10, 1.0);
  EXPECT_NEAR(cost.Milliseconds(probe) / TrueMs(probe), 1.0, 0.3);
  observe(100, 4.0);
  EXPECT_NEAR(cost.Milliseconds(probe) / TrueMs(probe, 4.0), 1.0, 0.15);
}

// While prompts come in, decodes, chunks and all their keys grow together: no step tells what is
// whose, but those without chunks.
TEST(StepCost, WhatChunksCostIsNotTakenForTheDecodesCost) {
  StepCost cost;
  cost.Observe(Step(1, 10, 0, 0), TrueMs(Step(1, 10, 0, 0)));
  for (int num_decodes = 1; num_decodes <= 100; ++num_decodes) {
    const StepShape mixed = Step(num_decodes, 512, 10 * num_decodes, 100);
    cost.Observe(mixed, TrueMs(mixed));
    if (num_decodes % 8 != 0) continue;
    const StepShape alone = Step(num_decodes, 512, 0, 0);
    cost.Observe(alone, TrueMs(alone));
    ASSERT_NEAR(cost.DecodeMilliseconds(mixed) / TrueMs(alone), 1.0, 0.1) << cost.ToString();
  }
}

// Hours of steps that are nearly the same leave nothing to tell their parts by.
TEST(StepCost, MonotonousStepsDoNotDriveItAway) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> noise(0.97, 1.03);
  StepCost cost;
  cost.Observe(Step(1, 1, 0, 0), 10.0 * TrueMs(Step(1, 1, 0, 0)));  // the first loads its code
  for (int step = 0; step < 50'000; ++step) {
    const StepShape shape = Step(100, 512 + step % 512, 0, 0);
    cost.Observe(shape, TrueMs(shape) * noise(random));
    if (step < 20) continue;
    ASSERT_NEAR(cost.Milliseconds(shape) / TrueMs(shape), 1.0, 0.1) << step << cost.ToString();
  }
  const StepShape chunk = Step(100, 700, 600, 0);
  for (int step = 0; step < 5; ++step) cost.Observe(chunk, TrueMs(chunk));
  EXPECT_NEAR(cost.Milliseconds(chunk) / TrueMs(chunk), 1.0, 0.1) << cost.ToString();
}

TEST(StepCost, NothingStrangeMakesItNegativeOrInfinite) {
  std::mt19937 random(4);
  StepCost cost;
  for (int step = 0; step < 5000; ++step) {
    const StepShape shape = Step(static_cast<int>(random() % 3), static_cast<int>(random() % 9),
                                 static_cast<int>(random() % 2000), static_cast<int>(random() % 9));
    cost.Observe(shape, random() % 10 == 0 ? 0.0 : 1e-3 * static_cast<double>(random() % 100000));
    const double ms = cost.Milliseconds(Step(1, 10, 100, 10));
    ASSERT_TRUE(std::isfinite(ms) && ms >= 0.0) << step;
    const int num_rows = cost.RowsWithin(10.0, 5, 2048);
    ASSERT_TRUE(num_rows >= 0 && num_rows <= 2048) << step;
  }
}

}  // namespace
}  // namespace lapidary
