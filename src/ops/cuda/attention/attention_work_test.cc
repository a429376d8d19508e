#include "ops/cuda/attention/attention_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

namespace lapidary::cuda {
namespace {

std::vector<AttentionItem> Plan(const AttentionGeometry& geometry,
                                const std::vector<AttentionSequence>& sequences,
                                const AttentionWorkOptions& options) {
  std::vector<AttentionItem> items(3);  // leftovers must not survive
  PlanAttentionWork(geometry, sequences, options, items);
  return items;
}

AttentionSequence Decode(int position) {
  return {.num_queries = 1, .first_position = position, .num_cached = position};
}

int RowTiles(const AttentionGeometry& geometry, const AttentionItem& item) {
  return (item.num_queries * geometry.heads_per_kv_head() + 15) / 16;
}

// Everything that must hold of any plan.
void ExpectSound(const AttentionGeometry& geometry, const std::vector<AttentionSequence>& sequences,
                 const AttentionWorkOptions& options, const std::vector<AttentionItem>& items) {
  // The key ranges of every (sequence, KV head, query).
  std::map<std::tuple<int, int, int>, std::vector<std::pair<int, int>>> ranges;
  // The tiles of partial results: first_partial -> (slots, splits seen).
  std::map<int, std::pair<int, std::vector<int>>> split_tiles;
  for (const AttentionItem& item : items) {
    if (options.even_shares && item.num_queries == 0) {  // keeps a place
      EXPECT_EQ(item.key_begin, item.key_end);
      EXPECT_EQ(item.num_splits, 1);
      continue;
    }
    ASSERT_GE(item.sequence, 0);
    ASSERT_LT(item.sequence, static_cast<int>(sequences.size()));
    const AttentionSequence& sequence = sequences[item.sequence];
    ASSERT_GE(item.num_queries, 1);
    ASSERT_LE(item.num_queries * geometry.heads_per_kv_head(), options.tile_rows);
    ASSERT_LE(item.query_begin + item.num_queries, sequence.num_queries);
    const int first = sequence.first_position + item.query_begin;
    const int last = first + item.num_queries - 1;
    ASSERT_LT(item.key_begin, item.key_end);
    EXPECT_GE(item.key_begin, geometry.window > 0 ? std::max(0, first - geometry.window + 1) : 0)
        << "reads keys that no row may see";
    EXPECT_LE(item.key_end, last + 1);
    EXPECT_TRUE(item.split == 0 || item.key_begin % kAttentionKeyTile == 0);
    EXPECT_TRUE(item.split + 1 == item.num_splits || item.key_end % kAttentionKeyTile == 0);
    if (item.num_splits > 1) {
      if (options.batch_invariant) {
        EXPECT_EQ(item.key_begin / kAttentionCombineKeys,
                  (item.key_end - 1) / kAttentionCombineKeys);
      }
      ASSERT_GE(item.first_partial, 0);
      auto& [slots, splits] = split_tiles[item.first_partial];
      slots = item.num_splits * RowTiles(geometry, item);
      splits.push_back(item.split);
    } else {
      EXPECT_EQ(item.first_partial, -1);
      EXPECT_EQ(item.split, 0);
    }
    for (int query = item.query_begin; query < item.query_begin + item.num_queries; ++query) {
      ranges[{item.sequence, item.kv_head, query}].push_back({item.key_begin, item.key_end});
    }
  }
  for (int idx = 0; idx < static_cast<int>(sequences.size()); ++idx) {
    for (int kv_head = 0; kv_head < geometry.num_kv_heads; ++kv_head) {
      for (int query = 0; query < sequences[idx].num_queries; ++query) {
        auto& own = ranges[{idx, kv_head, query}];
        ASSERT_FALSE(own.empty()) << "sequence " << idx << " query " << query << " is left out";
        std::sort(own.begin(), own.end());
        for (int range = 1; range < static_cast<int>(own.size()); ++range) {
          ASSERT_EQ(own[range].first, own[range - 1].second) << "a key twice or not at all";
        }
        const int position = sequences[idx].first_position + query;
        const int begin = geometry.window > 0 ? std::max(0, position - geometry.window + 1) : 0;
        EXPECT_LE(own.front().first, begin);
        EXPECT_GE(own.back().second, position + 1);
        ranges.erase({idx, kv_head, query});
      }
    }
  }
  EXPECT_TRUE(ranges.empty()) << "items of KV heads that do not exist";
  int used = 0;
  for (auto& [first_partial, tile] : split_tiles) {
    ASSERT_GE(first_partial, used) << "partial results overlap";
    used = first_partial + tile.first;
    std::sort(tile.second.begin(), tile.second.end());
    const int row_tiles = tile.first / static_cast<int>(tile.second.size());
    EXPECT_EQ(tile.first, row_tiles * static_cast<int>(tile.second.size()));
    for (int split = 0; split < static_cast<int>(tile.second.size()); ++split) {
      EXPECT_EQ(tile.second[split], split);
    }
  }
  EXPECT_LE(used, options.max_partials);
}

TEST(AttentionWorkTest, CoversEveryVisibleKeyOnceWhateverTheStep) {
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  constexpr int kWindows[] = {0, 1, 3, 24, 512, 1024};
  for (int round = 0; round < 400; ++round) {
    AttentionGeometry geometry;
    geometry.num_kv_heads = draw(1, 4);
    geometry.num_heads = geometry.num_kv_heads * draw(1, 16);
    geometry.window = kWindows[draw(0, 5)];
    AttentionWorkOptions options;
    options.num_blocks = draw(1, 264);
    options.batch_invariant = draw(0, 1) == 1;
    options.max_partials = draw(0, 2) == 0 ? draw(0, 64) : 4096;
    options.tile_rows = 16 << draw(0, 3);
    options.min_split_keys = 32 << draw(0, 3);
    options.even_shares = draw(0, 1) == 1;
    std::vector<AttentionSequence> sequences(draw(1, 12));
    for (AttentionSequence& sequence : sequences) {
      sequence.num_queries = draw(0, 2) == 0 ? draw(1, 200) : draw(1, 4);
      sequence.first_position = draw(0, 1) == 0 ? draw(0, 70) : draw(0, 6000);
      sequence.num_cached = sequence.first_position;
    }
    ASSERT_NO_FATAL_FAILURE(
        ExpectSound(geometry, sequences, options, Plan(geometry, sequences, options)))
        << "round " << round;
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST(AttentionWorkTest, OneLongSequenceFillsTheMachine) {
  const AttentionGeometry geometry = {.num_heads = 16, .num_kv_heads = 2, .window = 0};
  const AttentionWorkOptions options = {.num_blocks = 132, .max_partials = 1024};
  const auto items = Plan(geometry, {Decode(100000)}, options);
  EXPECT_GE(items.size(), 100u);
  EXPECT_LE(items.size(), 132u);
}

TEST(AttentionWorkTest, ShortSequencesStayWhole) {
  const AttentionGeometry geometry = {.num_heads = 8, .num_kv_heads = 1, .window = 512};
  const AttentionWorkOptions options = {.num_blocks = 264, .max_partials = 1024};
  EXPECT_EQ(Plan(geometry, {Decode(40), Decode(0)}, options).size(), 2u);
}

TEST(AttentionWorkTest, ManySequencesMakeWholeRounds) {
  // 80 x 8 tiles of a full window on 264 blocks: 640 items would take three rounds of 1024 keys.
  const AttentionGeometry geometry = {.num_heads = 16, .num_kv_heads = 8, .window = 1024};
  const AttentionWorkOptions options = {.num_blocks = 264, .max_partials = 8192};
  const auto items = Plan(geometry, std::vector<AttentionSequence>(80, Decode(8000)), options);
  std::vector<int64_t> load(options.num_blocks);
  for (int idx = 0; idx < static_cast<int>(items.size()); ++idx) {
    load[idx % options.num_blocks] += items[idx].key_end - items[idx].key_begin;
  }
  EXPECT_LE(*std::max_element(load.begin(), load.end()), 80 * 8 * 1024 / 264 * 1.12);
}

TEST(AttentionWorkTest, LittleRoomForSplitsIsNotSpentOnTheFirstSequences) {
  // Two pieces each would need 1280: better none than 32 sequences in halves and 48 whole.
  const AttentionGeometry geometry = {.num_heads = 16, .num_kv_heads = 8, .window = 1024};
  const AttentionWorkOptions options = {.num_blocks = 264, .max_partials = 512};
  const auto items = Plan(geometry, std::vector<AttentionSequence>(80, Decode(8000)), options);
  for (const AttentionItem& item : items) EXPECT_EQ(item.num_splits, items.front().num_splits);
}

TEST(AttentionWorkTest, LongOnesComeFirstAndBlocksGetEqualSums) {
  const AttentionGeometry geometry = {.num_heads = 16, .num_kv_heads = 2, .window = 0};
  const AttentionWorkOptions options = {.num_blocks = 132, .max_partials = 1024};
  const auto items = Plan(geometry, {{.num_queries = 8192}}, options);
  std::vector<int64_t> load(options.num_blocks);
  int64_t total = 0;
  int shortest_so_far = 1 << 30;
  for (int begin = 0; begin < static_cast<int>(items.size()); begin += options.num_blocks) {
    int shortest = 1 << 30;
    int longest = 0;
    for (int idx = begin;
         idx < std::min<int>(begin + options.num_blocks, static_cast<int>(items.size())); ++idx) {
      const int keys = items[idx].key_end - items[idx].key_begin;
      shortest = std::min(shortest, keys);
      longest = std::max(longest, keys);
      load[idx - begin] += keys;
      total += keys;
    }
    EXPECT_LE(longest, shortest_so_far + kAttentionKeyTile);
    shortest_so_far = shortest;
  }
  EXPECT_LE(*std::max_element(load.begin(), load.end()), total / options.num_blocks * 1.03);
}

TEST(AttentionWorkTest, EvenSharesAreEvenAndHardlyCut) {
  // 160 tiles on 132 blocks: pieces of equal length would be many, or leave blocks idle.
  const AttentionGeometry geometry = {.num_heads = 16, .num_kv_heads = 2, .window = 0};
  const AttentionWorkOptions options = {
      .num_blocks = 132, .max_partials = 4096, .even_shares = true};
  const std::vector<AttentionSequence> sequences(80, Decode(8000));
  const auto items = Plan(geometry, sequences, options);
  ExpectSound(geometry, sequences, options, items);
  std::vector<int64_t> load(options.num_blocks);
  int num_items = 0;
  for (int idx = 0; idx < static_cast<int>(items.size()); ++idx) {
    load[idx % options.num_blocks] += items[idx].key_end - items[idx].key_begin;
    num_items += items[idx].num_queries > 0 ? 1 : 0;
  }
  EXPECT_LE(*std::max_element(load.begin(), load.end()), 160 * 8001 / 132 * 1.01);
  EXPECT_LE(num_items, 160 + 132);
}

TEST(AttentionWorkTest, OneLongSequenceAmongShortOnesIsSharedByAll) {
  const AttentionGeometry geometry = {.num_heads = 16, .num_kv_heads = 2, .window = 0};
  const AttentionWorkOptions options = {
      .num_blocks = 132, .max_partials = 4096, .even_shares = true};
  std::vector<AttentionSequence> sequences(40, Decode(100));
  sequences.push_back(Decode(100'000));
  const auto items = Plan(geometry, sequences, options);
  ExpectSound(geometry, sequences, options, items);
  int64_t longest = 0;
  for (const AttentionItem& item : items) {
    longest = std::max<int64_t>(longest, item.key_end - item.key_begin);
  }
  EXPECT_LE(longest, 2 * 100'000 / 132 * 1.1);
}

// A captured graph has room for a list that does not go with the lengths
// (CudaExecutor::GraphShape), so that it serves a sequence from its first token to its last.
TEST(AttentionWorkTest, ListsFitTheirPlaceAtEveryLength) {
  constexpr int kPartials = 4096;
  for (const AttentionGeometry& geometry :
       {AttentionGeometry{16, 8, 1024}, {16, 2, 0}, {8, 1, 512}, {8, 1, 0}, {32, 16, 1024}}) {
    for (const int num_sequences : {1, 2, 7, 32, 80, 256}) {
      for (const int length : {1, 100, 1000, 8000, 100'000, 262'143}) {
        std::vector<AttentionSequence> sequences(num_sequences, Decode(length));
        sequences.back() = Decode(262'143);
        for (const bool batch_invariant : {false, true}) {
          AttentionWorkOptions options = WorkOfTile(32, batch_invariant);
          options.num_blocks = 132;
          options.max_partials = kPartials;
          const auto items = Plan(geometry, sequences, options);
          EXPECT_LE(items.size(), num_sequences * geometry.num_kv_heads + kPartials)
              << num_sequences << " sequences of " << length << " keys, " << geometry.num_kv_heads
              << " KV heads";
        }
      }
    }
  }
}

TEST(AttentionWorkTest, InvariantSplitsLieWhereTheyLieAlone) {
  // A tile is either one item or cut at every multiple of the combining length: never between.
  const AttentionGeometry geometry = {.num_heads = 8, .num_kv_heads = 2, .window = 1024};
  const AttentionWorkOptions options = {
      .num_blocks = 132, .batch_invariant = true, .max_partials = 4096};
  for (const int neighbours : {0, 3, 200}) {
    std::vector<AttentionSequence> sequences(neighbours, Decode(5));
    sequences.push_back(Decode(3333));
    for (const AttentionItem& item : Plan(geometry, sequences, options)) {
      if (item.sequence != neighbours) continue;
      EXPECT_TRUE(item.key_begin == 3333 - 1023 || item.key_begin % kAttentionCombineKeys == 0);
      EXPECT_TRUE(item.key_end == 3334 || item.key_end % kAttentionCombineKeys == 0);
    }
  }
}

// The time of planning goes with the pieces: where there is enough to do for all, only what is
// longer than a block's share is cut.
TEST(AttentionWorkTest, AFullStepIsHardlyCut) {
  const AttentionGeometry geometry = {.num_heads = 32, .num_kv_heads = 16, .window = 0};
  const AttentionWorkOptions options = {.num_blocks = 264, .max_partials = 1 << 20};
  std::vector<AttentionSequence> sequences(255, Decode(37));
  EXPECT_EQ(Plan(geometry, sequences, options).size(), 255u * geometry.num_kv_heads);
  sequences.push_back(Decode(100'000));
  const size_t num_whole = 255u * geometry.num_kv_heads;
  const size_t num_items = Plan(geometry, sequences, options).size();
  EXPECT_GT(num_items, num_whole + geometry.num_kv_heads);
  EXPECT_LE(num_items, num_whole + geometry.num_kv_heads + options.num_blocks);
}

TEST(AttentionTileTest, RowsOfASequenceShareATileWhereTheyFit) {
  const auto choose = [](int heads, int kv_heads, int head_dim, int queries) {
    return ChooseTileRows({heads, kv_heads, 0}, head_dim, {queries, 8192, 132}, false);
  };
  EXPECT_EQ(choose(16, 8, 256, 1), 32);   // 26B sliding, decoding
  EXPECT_EQ(choose(16, 8, 256, 16), 32);  // verifying fifteen drafts
  EXPECT_EQ(choose(16, 8, 256, 17), 128);
  EXPECT_EQ(choose(16, 1, 512, 1), 16);
  EXPECT_EQ(choose(16, 2, 512, 2), 16);  // verifying a draft
  EXPECT_EQ(choose(16, 2, 512, 3), 64);  // wgmma
  EXPECT_EQ(choose(16, 8, 256, 100), 128);
  EXPECT_EQ(choose(16, 2, 512, 100), 64);
}

TEST(AttentionTileTest, TilesAreHalvedWhereTheyWouldNotGoRound) {
  const auto choose = [](int heads, int kv_heads, int queries) {
    return ChooseTileRows({heads, kv_heads, 0}, 256, {queries, queries, 132}, false);
  };
  EXPECT_EQ(choose(8, 4, 1000), 64);  // 63 large ones
  EXPECT_EQ(choose(16, 8, 528), 64);  // 66, for half of 132
  EXPECT_EQ(choose(16, 8, 529), 128);
  EXPECT_EQ(choose(32, 16, 1000), 128);
  EXPECT_EQ(choose(8, 2, 8192), 128);
}

TEST(AttentionTileTest, FewRowsInAllAreNotForWgmma) {
  const auto choose = [](const AttentionGeometry& geometry, int head_dim, int queries,
                         int sequences) {
    return ChooseTileRows(geometry, head_dim, {queries, queries * sequences, 132}, false);
  };
  EXPECT_EQ(choose({8, 1, 0}, 512, 4, 1), 32);  // E2B full, verifying three drafts
  EXPECT_EQ(choose({8, 1, 0}, 512, 4, 6), 32);
  EXPECT_EQ(choose({8, 1, 0}, 512, 4, 7), 64);
  EXPECT_EQ(choose({8, 1, 0}, 512, 8, 1), 64);    // too many for one tile: keys would come twice
  EXPECT_EQ(choose({8, 1, 512}, 256, 8, 1), 32);  // which in a window does not matter
  EXPECT_EQ(choose({8, 1, 512}, 256, 8, 5), 64);
}

TEST(AttentionWorkTest, FewTilesHaveTheRowsOfOneWarp) {
  AttentionWorkOptions options = WorkOfTile(32, false);
  options.num_blocks = 132;
  options.max_partials = 4096;
  // Queries of the largest item where sequences verify three drafts behind so many keys.
  const auto most_queries = [&](const AttentionGeometry& geometry, int sequences, int num_keys) {
    AttentionSequence verify;
    verify.num_queries = 4;
    verify.first_position = verify.num_cached = num_keys;
    int most = 0;
    for (const AttentionItem& item :
         Plan(geometry, std::vector<AttentionSequence>(sequences, verify), options)) {
      most = std::max(most, item.num_queries);
    }
    return most;
  };
  EXPECT_EQ(most_queries({8, 1, 512}, 1, 1000), 1);
  EXPECT_EQ(most_queries({8, 2, 512}, 1, 1000), 2);
  EXPECT_EQ(most_queries({16, 8, 1024}, 1, 1000), 4);
  EXPECT_EQ(most_queries({8, 1, 512}, 6, 100'000), 1);
  EXPECT_EQ(most_queries({8, 1, 512}, 7, 1000), 4);  // enough to do
  EXPECT_EQ(most_queries({8, 1, 0}, 1, 4000), 1);
  EXPECT_EQ(most_queries({8, 1, 0}, 1, 5000), 4);  // keys are many
}

TEST(AttentionTileTest, InvariantTilesAreForThePortableKernels) {
  const auto choose = [](int heads, int kv_heads, int head_dim, int queries) {
    return ChooseTileRows({heads, kv_heads, 0}, head_dim, {queries, queries, 132},
                          /*batch_invariant=*/true);
  };
  EXPECT_EQ(choose(16, 8, 256, 8), 16);
  EXPECT_EQ(choose(8, 1, 256, 1), 32);  // one KV head
  EXPECT_EQ(choose(16, 2, 512, 1), 16);
  EXPECT_EQ(choose(16, 2, 512, 4), 32);
  EXPECT_EQ(choose(16, 8, 256, 100), 64);
}

TEST(AttentionTileTest, LargeTilesAreSplitLate) {
  for (const int rows : kAttentionTileRows) {
    EXPECT_EQ(WorkOfTile(rows, false).tile_rows, rows);
    EXPECT_EQ(WorkOfTile(rows, false).min_split_keys, rows < 64 ? 128 : 256);
    EXPECT_EQ(WorkOfTile(rows, true).min_split_keys, rows < 64 ? 64 : 256);
    EXPECT_TRUE(WorkOfTile(rows, false).even_shares);
    EXPECT_FALSE(WorkOfTile(rows, true).even_shares);
  }
}

}  // namespace
}  // namespace lapidary::cuda
