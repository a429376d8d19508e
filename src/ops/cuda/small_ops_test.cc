// Embeddings, cached entries and page moves against the CPU operations in f32.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "model/plan.h"
#include "model/presets.h"
#include "model/synthetic_values.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/rope.h"
#include "ops/cuda/attention/kv_entries.h"
#include "ops/cuda/bf16_matrix.h"
#include "ops/cuda/embedding.h"
#include "ops/cuda/synthetic.h"
#include "ops/cuda/test_buffer.h"
#include "ops/cuda/test_values.h"
#include "tensor/block_formats.h"
#include "tensor/decode.h"
#include "tensor/quantise.h"
#include "tensor/repack.h"
#include "tensor/tile_row.h"

namespace lapidary::cuda {
namespace {

class SmallOpsTest : public testing::Test {
 protected:
  void SetUp() override { LAPIDARY_SKIP_WITHOUT_GPU(); }

  std::vector<float> Floats(size_t count, float amplitude, float centre = 0.0f) {
    return RandomFloats(random_, count, amplitude, centre);
  }
  std::vector<bf16> Halves(size_t count, float amplitude) {
    std::vector<bf16> halves;
    for (const float value : Floats(count, amplitude)) halves.push_back(__float2bfloat16(value));
    return halves;
  }
  std::mt19937 random_{3};
};

constexpr double kBf16Rounding = 4e-3;

TEST_F(SmallOpsTest, SyntheticWeightsAreTheHostsBitForBit) {
  for (const TensorRole role : {TensorRole::kMatrix, TensorRole::kNorm}) {
    const TensorSpec spec{"layers.3.mlp.down_proj.weight", {321, 96}, TensorComponent::kMlp, role};
    std::vector<uint16_t> expected(spec.num_elements());
    FillSyntheticStored(spec, 9, 0, DType::kBF16, std::as_writable_bytes(std::span(expected)));
    TestBuffer<bf16> made(expected.size());
    RunFillSynthetic(TestContext(), MakeSyntheticLaw(spec, 9), spec.num_elements(), made.get());
    const std::vector<bf16> values = made.Download();
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size() * 2), 0);
    EXPECT_TRUE(made.GuardsIntact());
  }
}

TEST_F(SmallOpsTest, EmbeddingGathersRowsAndFillsRotaryTables) {
  constexpr int kVocab = 50;
  constexpr int kHidden = 96;
  const std::vector<int32_t> ids = {7, 13, 49, 11, 0};
  const std::vector<int32_t> positions = {0, 5, 70000, 131071, 262143};
  const std::vector<bf16> table = Halves(kVocab * kHidden, 1.0f);
  constexpr int kPairs = 77, kRowPairs = RopeRowPairs(kPairs);
  RopePlan rope{.head_dim = 256, .num_rotary_pairs = kPairs, .theta = 1e4};
  TestBuffer<int32_t> d_ids(ids), d_positions(positions);
  TestBuffer<bf16> d_table(table);
  TestBuffer<float> hidden(ids.size() * kHidden);
  TestBuffer<bf16> x(ids.size() * kHidden);
  TestBuffer<float> frequencies(rope.Frequencies());
  TestBuffer<float2> rope_table(ids.size() * kRowPairs);
  EmbedCall call;
  call.rows = static_cast<int>(ids.size());
  call.hidden = kHidden;
  call.token_ids = d_ids.get();
  call.positions = d_positions.get();
  call.embedding = Bf16Matrix(d_table.get(), kVocab, kHidden);
  call.scale = 9.5f;
  call.hidden_out = hidden.get();
  call.x = x.get();
  call.rope[0] = {frequencies.get(), kPairs, rope_table.get()};
  RunEmbed(TestContext(), call);
  const std::vector<float> values = hidden.Download();
  for (size_t row = 0; row < ids.size(); ++row) {
    for (int at = 0; at < kHidden; ++at) {
      ASSERT_EQ(values[row * kHidden + at],
                __bfloat162float(table[ids[row] * kHidden + at]) * 9.5f);
    }
  }
  cpu::RopeTable expected;
  expected.Fill(rope.Frequencies(), positions);
  const std::vector<float2> angles = rope_table.Download();
  for (size_t row = 0; row < ids.size(); ++row) {
    for (int pair = 0; pair < kPairs; ++pair) {
      const float2 angle = angles[row * kRowPairs + pair];
      ASSERT_NEAR(angle.x, expected.CosRow(row)[pair], 1e-7);
      ASSERT_NEAR(angle.y, expected.SinRow(row)[pair], 1e-7);
    }
  }
  EXPECT_TRUE(hidden.GuardsIntact() && x.GuardsIntact() && rope_table.GuardsIntact());
}

TEST_F(SmallOpsTest, EmbeddingGathersRowsOfTiledTables) {
  constexpr int kVocab = 24, kHidden = 192;
  const std::vector<int32_t> ids = {3, 0, 23, 8, 7, 3};
  const std::vector<int32_t> positions(ids.size());
  for (const DType stored : {DType::kQ4_0, DType::kQ8_0}) {
    // Any bytes are codes; scales are small halves.
    std::vector<uint8_t> blocks(DTypeBytes(stored, int64_t{kVocab} * kHidden));
    for (size_t at = 0; at < blocks.size(); ++at) blocks[at] = static_cast<uint8_t>(at * 37 + 11);
    for (size_t at = 0; at < blocks.size(); at += BlockOf(stored).bytes) {
      const uint16_t scale = FloatToF16(0.01f * static_cast<float>(1 + at % 7));
      std::memcpy(blocks.data() + at, &scale, sizeof(scale));
    }
    const MatrixRef matrix{
        .data = blocks.data(), .format = FormatOf(stored), .rows = kVocab, .cols = kHidden};
    const WeightFormat tiles = TileFormatFor(matrix.format).value();
    std::vector<uint8_t> tiled(BytesOf(tiles, kVocab, kHidden).total());
    RepackRows(matrix, 0, kVocab, tiles, reinterpret_cast<std::byte*>(tiled.data()));
    TestBuffer<int32_t> d_ids(ids), d_positions(positions);
    TestBuffer<uint8_t> d_table(tiled);
    TestBuffer<float> hidden(ids.size() * kHidden);
    EmbedCall call;
    call.rows = static_cast<int>(ids.size());
    call.hidden = kHidden;
    call.token_ids = d_ids.get();
    call.positions = d_positions.get();
    call.embedding = {.data = d_table.get(), .format = tiles, .rows = kVocab, .cols = kHidden};
    call.scale = 3.0f;
    call.hidden_out = hidden.get();
    RunEmbed(TestContext(), call);
    const std::vector<float> values = hidden.Download();
    std::vector<float> expected(kHidden);
    for (size_t row = 0; row < ids.size(); ++row) {
      DecodeRow(matrix, ids[row], expected.data());
      for (int at = 0; at < kHidden; ++at) {
        ASSERT_EQ(values[row * kHidden + at], expected[at] * 3.0f) << row << ", " << at;
      }
    }
    EXPECT_TRUE(hidden.GuardsIntact());
  }
}

TEST_F(SmallOpsTest, PerLayerInputsMatch) {
  for (const int width : {32, 256}) {
    constexpr int kRows = 5;
    constexpr int kLayers = 7;
    constexpr int kHidden = 96;
    const int columns = kLayers * width;
    const std::vector<int32_t> ids = {3, 0, 9, 9, 1};
    const std::vector<bf16> table = Halves(10 * columns, 1.0f);
    const std::vector<bf16> projected = Halves(kRows * columns, 3.0f);
    const std::vector<float> norm = Floats(width, 0.5f, 1.0f);
    TestBuffer<int32_t> d_ids(ids);
    TestBuffer<bf16> d_table(table), d_projected(projected), out(kRows * columns);
    TestBuffer<float> d_norm(norm);
    const PerLayerInputsCall call{.rows = kRows,
                                  .num_layers = kLayers,
                                  .width = width,
                                  .hidden = kHidden,
                                  .token_ids = d_ids.get(),
                                  .table = Bf16Matrix(d_table.get(), 10, columns),
                                  .projected = d_projected.get(),
                                  .norm = d_norm.get(),
                                  .out = out.get()};
    RunPerLayerInputs(TestContext(), call);
    std::vector<float> expected(kRows * columns);
    std::vector<float> scratch(columns);
    for (int row = 0; row < kRows; ++row) {
      float* to = expected.data() + row * columns;
      for (int at = 0; at < columns; ++at) {
        scratch[at] = __bfloat162float(projected[row * columns + at]) / std::sqrt(float{kHidden});
      }
      for (int layer = 0; layer < kLayers; ++layer) {
        cpu::RmsNorm(scratch.data() + layer * width, norm.data(), 1e-6f, width, to + layer * width);
      }
      for (int at = 0; at < columns; ++at) {
        const float entry = __bfloat162float(table[ids[row] * columns + at]);
        to[at] = (to[at] + entry * std::sqrt(static_cast<float>(width))) / std::sqrt(2.0f);
      }
    }
    EXPECT_LT(Distance(ToFloat(out.Download()), expected), kBf16Rounding);
    EXPECT_TRUE(out.GuardsIntact());
  }
}

TEST_F(SmallOpsTest, PerLayerInputsFromBlocksAreThoseFromTheirValues) {
  constexpr int kRows = 5;
  constexpr int kLayers = 3;
  constexpr int kWidth = 256;
  constexpr int kColumns = kLayers * kWidth;
  constexpr int kIds = 10;
  const std::vector<int32_t> ids = {3, 0, 9, 9, 1};
  TestBuffer<int32_t> d_ids(ids);
  TestBuffer<bf16> d_projected(Halves(kRows * kColumns, 3.0f)), out(kRows * kColumns);
  TestBuffer<float> d_norm(Floats(kWidth, 0.5f, 1.0f));
  const std::vector<float> values = Floats(kIds * kColumns, 1.0f, 0.0f);
  for (const DType type : {DType::kQ4_0, DType::kQ5_0, DType::kQ8_0, DType::kQ4_K}) {
    SCOPED_TRACE(DTypeName(type));
    std::vector<uint8_t> blocks(DTypeBytes(type, kIds * kColumns));
    Quantise(values.data(), kIds * kColumns, type, reinterpret_cast<std::byte*>(blocks.data()));
    std::vector<float> exact(kIds * kColumns);
    Dequantise(type, blocks.data(), kIds * kColumns, exact.data());
    TestBuffer<uint8_t> d_blocks(blocks);
    PerLayerInputsCall call;
    call.rows = kRows;
    call.num_layers = kLayers;
    call.width = kWidth;
    call.hidden = 96;
    call.token_ids = d_ids.get();
    call.table = {.data = d_blocks.get(), .format = FormatOf(type), .rows = kIds, .cols = kColumns};
    call.projected = d_projected.get();
    call.norm = d_norm.get();
    call.out = out.get();
    RunPerLayerInputs(TestContext(), call);
    const std::vector<float> from_blocks = ToFloat(out.Download());
    // The part that the table adds, which a table of zeros leaves out.
    TestBuffer<bf16> d_zeros(std::vector<bf16>(kIds * kColumns));
    call.table = Bf16Matrix(d_zeros.get(), kIds, kColumns);
    RunPerLayerInputs(TestContext(), call);
    std::vector<float> expected = ToFloat(out.Download());
    for (int row = 0; row < kRows; ++row) {
      for (int at = 0; at < kColumns; ++at) {
        expected[row * kColumns + at] += exact[ids[row] * kColumns + at] *
                                         std::sqrt(static_cast<float>(kWidth)) / std::sqrt(2.0f);
      }
    }
    EXPECT_LT(Distance(from_blocks, expected), kBf16Rounding);
  }
}

LayerPlan TestLayer(int head_dim, bool k_is_v, int rotary_pairs) {
  LayerPlan layer;
  layer.head_dim = head_dim;
  layer.num_heads = 5;
  layer.num_kv_heads = 3;
  layer.k_is_v = k_is_v;
  layer.rope = {.head_dim = head_dim, .num_rotary_pairs = rotary_pairs, .theta = 1e6};
  layer.kv_entry =
      k_is_v ? KvEntryPlan{head_dim, 2 * rotary_pairs, head_dim, head_dim + 2 * rotary_pairs}
             : KvEntryPlan{head_dim, head_dim, head_dim, 2 * head_dim};
  return layer;
}

TEST_F(SmallOpsTest, QueriesAndEntriesMatchInEveryForm) {
  // With an odd number of rotary pairs too: rows of the table have room for one more.
  for (const auto& [head_dim, k_is_v, rotary_pairs] :
       {std::tuple(256, false, 128), std::tuple(256, false, 77), std::tuple(512, false, 64),
        std::tuple(512, true, 64)}) {
    const LayerPlan layer = TestLayer(head_dim, k_is_v, rotary_pairs);
    constexpr int kRows = 6;
    const std::vector<int32_t> positions = {0, 1, 77, 4095, 100001, 262143};
    const int raw_heads = layer.num_heads + layer.num_kv_heads * (k_is_v ? 1 : 2);
    const std::vector<bf16> raw = Halves(size_t(kRows) * raw_heads * head_dim, 3.0f);
    const std::vector<float> q_norm = Floats(head_dim, 0.1f, 0.3f);
    const std::vector<float> k_norm = Floats(head_dim, 0.1f, 0.3f);
    cpu::RopeTable table;
    table.Fill(layer.rope.Frequencies(), positions);
    const cpu::RotaryHead rotary{.head_dim = head_dim, .num_rotary_pairs = rotary_pairs};
    const int row_pairs = RopeRowPairs(rotary_pairs);
    std::vector<float2> packed(size_t(kRows) * row_pairs, {NAN, NAN});
    for (int row = 0; row < kRows; ++row) {
      for (int pair = 0; pair < rotary_pairs; ++pair) {
        packed[row * row_pairs + pair] = {table.CosRow(row)[pair], table.SinRow(row)[pair]};
      }
    }
    TestBuffer<bf16> d_raw(raw);
    TestBuffer<float> d_q_norm(q_norm), d_k_norm(k_norm);
    TestBuffer<float2> d_table(packed);
    TestBuffer<bf16> queries(size_t(kRows) * layer.num_heads * layer.kv_entry.key_len);
    TestBuffer<bf16> entries(size_t(kRows) * layer.num_kv_heads * layer.kv_entry.entry_len);
    QueryEntryCall call;
    call.rows = kRows;
    call.num_heads = layer.num_heads;
    call.num_kv_heads = layer.num_kv_heads;
    call.head_dim = head_dim;
    call.k_is_v = k_is_v;
    call.entry = layer.kv_entry;
    call.raw = d_raw.get();
    call.q_norm = d_q_norm.get();
    call.k_norm = d_k_norm.get();
    call.owner_k_norm = d_k_norm.get();
    call.rope = d_table.get();
    call.rotary_pairs = layer.rope.num_rotary_pairs;
    call.queries = queries.get();
    call.entries = entries.get();
    RunQueryEntry(TestContext(), call);

    const std::vector<float> raw_floats = ToFloat(raw);
    std::vector<float> expected_queries;
    std::vector<float> expected_entries;
    for (int row = 0; row < kRows; ++row) {
      const float* row_raw = raw_floats.data() + size_t(row) * raw_heads * head_dim;
      for (int head = 0; head < layer.num_heads; ++head) {
        std::vector<float> query(layer.kv_entry.key_len);
        cpu::MakeCachedQuery(rotary, layer.kv_entry, row_raw + head * head_dim, q_norm.data(),
                             k_norm.data(), 1e-6f, table.CosRow(row), table.SinRow(row),
                             query.data());
        expected_queries.insert(expected_queries.end(), query.begin(), query.end());
      }
      for (int head = 0; head < layer.num_kv_heads; ++head) {
        const float* key = row_raw + (layer.num_heads + head) * head_dim;
        std::vector<float> entry(layer.kv_entry.entry_len);
        const float* value = k_is_v ? key : key + layer.num_kv_heads * head_dim;
        cpu::MakeKvEntry(rotary, layer.kv_entry, key, value, k_norm.data(), 1e-6f,
                         table.CosRow(row), table.SinRow(row), entry.data());
        expected_entries.insert(expected_entries.end(), entry.begin(), entry.end());
      }
    }
    EXPECT_LT(Distance(ToFloat(queries.Download()), expected_queries), kBf16Rounding) << head_dim;
    EXPECT_LT(Distance(ToFloat(entries.Download()), expected_entries), kBf16Rounding) << head_dim;
    EXPECT_TRUE(queries.GuardsIntact() && entries.GuardsIntact());
  }
}

// Of many rows a warp has several heads, also of different kinds.
TEST_F(SmallOpsTest, QueriesAndEntriesOfManyRowsHaveTheBitsOfFew) {
  for (const auto& [head_dim, k_is_v, rotary_pairs] :
       {std::tuple(256, false, 128), std::tuple(512, false, 64), std::tuple(512, true, 64)}) {
    const LayerPlan layer = TestLayer(head_dim, k_is_v, rotary_pairs);
    const int raw_heads = layer.num_heads + layer.num_kv_heads * (k_is_v ? 1 : 2);
    const int many = 64 * 4 * TestContext().Device().num_sms / raw_heads + 3;
    constexpr int kFew = 5;
    const std::vector<bf16> raw = Halves(size_t(many) * raw_heads * head_dim, 3.0f);
    const std::vector<float> angles = Floats(size_t(many) * 2 * RopeRowPairs(rotary_pairs), 0, 1);
    TestBuffer<bf16> d_raw(raw);
    TestBuffer<float> d_q_norm(Floats(head_dim, 0.1f, 0.3f)),
        d_k_norm(Floats(head_dim, 0.1f, 0.3f));
    TestBuffer<float> d_angles(angles);
    const size_t query_row = size_t(layer.num_heads) * layer.kv_entry.key_len;
    const size_t entry_row = size_t(layer.num_kv_heads) * layer.kv_entry.entry_len;
    QueryEntryCall call;
    call.num_heads = layer.num_heads;
    call.num_kv_heads = layer.num_kv_heads;
    call.head_dim = head_dim;
    call.k_is_v = k_is_v;
    call.entry = layer.kv_entry;
    call.q_norm = d_q_norm.get();
    call.k_norm = d_k_norm.get();
    call.owner_k_norm = d_k_norm.get();
    call.rotary_pairs = rotary_pairs;
    const auto run = [&](int first, int rows) {
      TestBuffer<bf16> queries(rows * query_row);
      TestBuffer<bf16> entries(rows * entry_row);
      call.rows = rows;
      call.raw = d_raw.get() + size_t(first) * raw_heads * head_dim;
      call.rope =
          reinterpret_cast<float2*>(d_angles.get()) + size_t(first) * RopeRowPairs(rotary_pairs);
      call.queries = queries.get();
      call.entries = entries.get();
      RunQueryEntry(TestContext(), call);
      std::vector<float> all = ToFloat(queries.Download());
      const std::vector<float> made = ToFloat(entries.Download());
      EXPECT_TRUE(queries.GuardsIntact() && entries.GuardsIntact());
      // Of the last few rows.
      all.erase(all.begin(), all.end() - kFew * query_row);
      all.insert(all.end(), made.end() - kFew * entry_row, made.end());
      return all;
    };
    EXPECT_EQ(run(0, many), run(many - kFew, kFew)) << head_dim;
  }
}

TEST_F(SmallOpsTest, EntriesReachTheirPagesAndNothingElse) {
  constexpr int kRows = 3;
  constexpr int kTokens[kNumKvGroups] = {4, 8};
  constexpr int kHeads = 2;
  constexpr int kEntry = 512;
  constexpr int64_t kLayerBytes[kNumKvGroups] = {4 * kHeads * kEntry * 2, 8 * kHeads * kEntry * 2};
  constexpr int64_t kPageBytes = 2 * kLayerBytes[1];
  constexpr int kPages = 5;
  const std::vector<bf16> first = Halves(kRows * kHeads * kEntry, 1.0f);
  const std::vector<bf16> second = Halves(kRows * kHeads * kEntry, 1.0f);
  TestBuffer<bf16> d_first(first), d_second(second);
  const std::vector<StoredLayer> layers = {
      {d_first.get(), kLayerBytes[0], kHeads, kEntry, 0, kTokens[0]},
      {d_second.get(), 0, kHeads, kEntry, 1, kTokens[1]}};
  TestBuffer<StoredLayer> d_layers(layers);
  const std::vector<int32_t> pages[kNumKvGroups] = {{2, 0, 3}, {4, 4, 1}};
  const std::vector<int32_t> slots[kNumKvGroups] = {{3, 1, 0}, {6, 7, 0}};
  TestBuffer<int32_t> pages0(pages[0]), pages1(pages[1]), slots0(slots[0]), slots1(slots[1]);
  TestBuffer<bf16> pool(kPages * kPageBytes / 2);
  std::vector<bf16> expected = pool.Download();
  for (int layer = 0; layer < 2; ++layer) {
    for (int row = 0; row < kRows; ++row) {
      if (pages[layer][row] == 0) continue;
      for (int head = 0; head < kHeads; ++head) {
        const bf16* from = (layer == 0 ? first : second).data() + (row * kHeads + head) * kEntry;
        const int64_t at = (pages[layer][row] * kPageBytes + layers[layer].layer_offset) / 2 +
                           (head * kTokens[layer] + slots[layer][row]) * kEntry;
        std::copy_n(from, kEntry, expected.begin() + at);
      }
    }
  }
  StoreEntriesCall call;
  call.rows = kRows;
  call.num_layers = 2;
  call.max_kv_heads = kHeads;
  call.layers = d_layers.get();
  call.pages[0] = pages0.get();
  call.pages[1] = pages1.get();
  call.slots[0] = slots0.get();
  call.slots[1] = slots1.get();
  call.pool = reinterpret_cast<std::byte*>(pool.get());
  call.page_bytes = kPageBytes;
  RunStoreEntries(TestContext(), call);
  EXPECT_TRUE(SameBits(pool.Download(), expected));
  EXPECT_TRUE(pool.GuardsIntact());

  // Copies happen in order: 2 to 1, then what is in 1 to 3.
  const std::vector<int32_t> from_to = {2, 1, 1, 3};
  TestBuffer<int32_t> d_from_to(from_to);
  RunCopyPages(TestContext(), call.pool, kPageBytes, d_from_to.get(), 2);
  const int64_t page_len = kPageBytes / 2;
  std::copy_n(expected.begin() + 2 * page_len, page_len, expected.begin() + 1 * page_len);
  std::copy_n(expected.begin() + 1 * page_len, page_len, expected.begin() + 3 * page_len);
  EXPECT_TRUE(SameBits(pool.Download(), expected));
}

}  // namespace
}  // namespace lapidary::cuda
