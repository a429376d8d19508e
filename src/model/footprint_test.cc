// The published checkpoints' counts, digit by digit as the specification prints them.
#include "model/footprint.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/presets.h"
#include "model/tensor_specs.h"

namespace lapidary {
namespace {

ModelPlan PresetPlan(const std::string& name) {
  return MakeModelPlan(ParseModelConfig(*PresetConfig(name), name).value()).value();
}

// Parameters of one layer without its experts, and of its attention and dense MLP matrices alone.
struct LayerFootprint {
  int64_t total = 0;
  int64_t attention = 0;
  int64_t mlp = 0;
  int64_t experts = 0;
};

LayerFootprint MakeLayerFootprint(const ModelPlan& plan, int layer_idx) {
  LayerFootprint footprint;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    if (spec.layer != layer_idx) continue;
    const int64_t count = spec.num_elements();
    if (spec.component == TensorComponent::kExperts) {
      footprint.experts += count;
      continue;
    }
    footprint.total += count;
    if (spec.role != TensorRole::kMatrix) continue;
    if (spec.component == TensorComponent::kAttention) footprint.attention += count;
    if (spec.component == TensorComponent::kMlp) footprint.mlp += count;
  }
  return footprint;
}

std::string Millions(int64_t count, int digits) {
  return fmt::format("{:.{}f} M", 1e-6 * count, digits);
}

// bf16 bytes in gigabytes: three decimals below ten, else two.
std::string Gigabytes(int64_t parameters) {
  const double gigabytes = 2e-9 * static_cast<double>(parameters);
  return fmt::format("{:.{}f} GB", gigabytes, gigabytes < 10 ? 3 : 2);
}

std::string Billions(int64_t parameters) {
  return fmt::format("{:.3f} B / {}", 1e-9 * static_cast<double>(parameters),
                     Gigabytes(parameters));
}

// "36.18 M x12 (7.08+28.31)" for the layers of one kind, which must all be alike.
std::string LayerKind(const ModelPlan& plan, AttentionKind kind, bool owns_kv) {
  int num_layers = 0;
  std::string text;
  for (const LayerPlan& layer : plan.layers) {
    if (layer.kind != kind || layer.owns_kv() != owns_kv) continue;
    const LayerFootprint footprint = MakeLayerFootprint(plan, layer.index);
    const std::string counts =
        fmt::format("({:.2f}+{:.2f})", 1e-6 * footprint.attention, 1e-6 * footprint.mlp);
    const std::string line = Millions(footprint.total, 2) + " " + counts;
    EXPECT_TRUE(text.empty() || text == line) << "layer " << layer.index << ": " << line;
    text = line;
    ++num_layers;
  }
  return num_layers == 0 ? "-" : fmt::format("{} x{}", text, num_layers);
}

// Sum over the tensors of layer 0 whose name holds `part`.
int64_t LayerParameters(const ModelPlan& plan, std::string_view part) {
  int64_t count = 0;
  for (const TensorSpec& spec : RequiredTensors(plan)) {
    if (spec.layer == 0 && spec.name.find(part) != std::string::npos) count += spec.num_elements();
  }
  return count;
}

struct Row {
  const char* preset;
  const char* embedding;
  const char* per_layer_embedding;
  const char* per_layer_projection;
  const char* sliding;
  const char* full;
  const char* sliding_shared;
  const char* full_shared;
  const char* ple_per_layer;
  const char* experts;
  const char* layers;
  const char* total;
  const char* unused;
  const char* read;
  const char* head;
  const char* gathered;
  int64_t sliding_kv_bytes;
  int64_t full_kv_bytes;
  int64_t full_kv_bytes_stored;
};

constexpr Row kTable[] = {
    {.preset = "e2b",
     .embedding = "402.7 M / 0.805 GB",
     .per_layer_embedding = "2348.8 M / 4.698 GB",
     .per_layer_projection = "13.76 M / 27.5 MB",
     .sliding = "36.18 M (7.08+28.31) x12",
     .full = "43.26 M (14.16+28.31) x3",
     .sliding_shared = "63.71 M (6.29+56.62) x16",
     .full_shared = "70.00 M (12.58+56.62) x4",
     .ple_per_layer = "0.79 M",
     .experts = "-",
     .layers = "1863.3 M / 3.727 GB",
     .total = "4.629 B / 9.257 GB",
     .unused = "18.9 M",
     .read = "2.280 B / 4.560 GB",
     .head = "0.805 GB",
     .gathered = "21.0 kB",
     .sliding_kv_bytes = 12288,
     .full_kv_bytes = 6144,
     .full_kv_bytes_stored = 6144},
    {.preset = "e4b",
     .embedding = "671.1 M / 1.342 GB",
     .per_layer_embedding = "2818.6 M / 5.637 GB",
     .per_layer_projection = "27.53 M / 55.1 MB",
     .sliding = "93.07 M (13.11+78.64) x20",
     .full = "106.18 M (26.21+78.64) x4",
     .sliding_shared = "90.45 M (10.49+78.64) x15",
     .full_shared = "100.94 M (20.97+78.64) x3",
     .ple_per_layer = "1.31 M",
     .experts = "-",
     .layers = "3945.8 M / 7.892 GB",
     .total = "7.463 B / 14.93 GB",
     .unused = "55.1 M",
     .read = "4.644 B / 9.289 GB",
     .head = "1.342 GB",
     .gathered = "26.6 kB",
     .sliding_kv_bytes = 40960,
     .full_kv_bytes = 16384,
     .full_kv_bytes_stored = 16384},
    {.preset = "12b",
     .embedding = "1006.6 M / 2.013 GB",
     .per_layer_embedding = "-",
     .per_layer_projection = "-",
     .sliding = "224.15 M (47.19+176.95) x40",
     .full = "241.84 M (64.88+176.95) x8",
     .sliding_shared = "-",
     .full_shared = "-",
     .ple_per_layer = "-",
     .experts = "-",
     .layers = "10900.7 M / 21.80 GB",
     .total = "11.907 B / 23.81 GB",
     .unused = "-",
     .read = "11.907 B / 23.81 GB",
     .head = "2.013 GB",
     .gathered = "7.7 kB",
     .sliding_kv_bytes = 327680,
     .full_kv_bytes = 16384,
     .full_kv_bytes_stored = 10240},
    {.preset = "26b-a4b",
     .embedding = "738.2 M / 1.476 GB",
     .per_layer_embedding = "-",
     .per_layer_projection = "-",
     .sliding = "52.83 M (34.60+17.84) x25",
     .full = "67.25 M (49.02+17.84) x5",
     .sliding_shared = "-",
     .full_shared = "-",
     .ple_per_layer = "-",
     .experts = "22838 M / 45.68 GB, 761.3 M a layer = 128 x 5.947 M",
     .layers = "1657.0 M / 3.314 GB",
     .total = "25.233 B / 50.47 GB",
     .unused = "-",
     .read = "3.823 B / 7.645 GB",
     .head = "1.476 GB",
     .gathered = "5.6 kB",
     .sliding_kv_bytes = 204800,
     .full_kv_bytes = 20480,
     .full_kv_bytes_stored = 12800},
    {.preset = "31b",
     .embedding = "1409.3 M / 2.819 GB",
     .per_layer_embedding = "-",
     .per_layer_projection = "-",
     .sliding = "478.96 M (132.12+346.82) x50",
     .full = "534.01 M (187.17+346.82) x10",
     .sliding_shared = "-",
     .full_shared = "-",
     .ple_per_layer = "-",
     .experts = "-",
     .layers = "29288.1 M / 58.58 GB",
     .total = "30.697 B / 61.39 GB",
     .unused = "-",
     .read = "30.697 B / 61.39 GB",
     .head = "2.819 GB",
     .gathered = "10.8 kB",
     .sliding_kv_bytes = 819200,
     .full_kv_bytes = 81920,
     .full_kv_bytes_stored = 51200},
};

class FootprintTable : public testing::TestWithParam<Row> {};

std::string OrDash(int64_t count, const std::string& text) { return count == 0 ? "-" : text; }

TEST_P(FootprintTable, HasExactlyThePrintedDigits) {
  const Row& row = GetParam();
  const ModelPlan plan = PresetPlan(row.preset);
  const Footprint footprint = MakeFootprint(plan);
  EXPECT_EQ(Millions(footprint.embedding, 1) + " / " + Gigabytes(footprint.embedding),
            row.embedding);
  EXPECT_EQ(
      OrDash(footprint.per_layer_embedding, Millions(footprint.per_layer_embedding, 1) + " / " +
                                                Gigabytes(footprint.per_layer_embedding)),
      row.per_layer_embedding);
  EXPECT_EQ(OrDash(footprint.per_layer_projection,
                   fmt::format("{} / {:.1f} MB", Millions(footprint.per_layer_projection, 2),
                               2e-6 * static_cast<double>(footprint.per_layer_projection))),
            row.per_layer_projection);
  EXPECT_EQ(LayerKind(plan, AttentionKind::kSliding, true), row.sliding);
  EXPECT_EQ(LayerKind(plan, AttentionKind::kFull, true), row.full);
  EXPECT_EQ(LayerKind(plan, AttentionKind::kSliding, false), row.sliding_shared);
  EXPECT_EQ(LayerKind(plan, AttentionKind::kFull, false), row.full_shared);
  const int64_t ple = LayerParameters(plan, "per_layer");
  EXPECT_EQ(OrDash(ple, Millions(ple, 2)), row.ple_per_layer);
  EXPECT_EQ(OrDash(footprint.experts,
                   fmt::format("{} / {}, {} a layer = 128 x {}", Millions(footprint.experts, 0),
                               Gigabytes(footprint.experts),
                               Millions(MakeLayerFootprint(plan, 0).experts, 1),
                               Millions(MakeLayerFootprint(plan, 0).experts / 128, 3))),
            row.experts);
  EXPECT_EQ(Millions(footprint.layers, 1) + " / " + Gigabytes(footprint.layers), row.layers);
  EXPECT_EQ(Billions(footprint.total()), row.total);
  EXPECT_EQ(OrDash(footprint.unused_shared_kv, Millions(footprint.unused_shared_kv, 1)),
            row.unused);
  EXPECT_EQ(Billions(footprint.read_per_token), row.read);
  EXPECT_EQ(Gigabytes(footprint.embedding), row.head);
  EXPECT_EQ(fmt::format("{:.1f} kB", 2e-3 * static_cast<double>(footprint.gathered_per_token)),
            row.gathered);
  EXPECT_EQ(2 * plan.kv_groups[kSlidingGroup].reference_values_per_token, row.sliding_kv_bytes);
  EXPECT_EQ(2 * plan.kv_groups[kFullGroup].reference_values_per_token, row.full_kv_bytes);
  EXPECT_EQ(2 * plan.kv_groups[kSlidingGroup].stored_values_per_token, row.sliding_kv_bytes);
  EXPECT_EQ(2 * plan.kv_groups[kFullGroup].stored_values_per_token, row.full_kv_bytes_stored);
}

INSTANTIATE_TEST_SUITE_P(Published, FootprintTable, testing::ValuesIn(kTable), [](const auto& row) {
  std::string name = row.param.preset;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Footprint, EightExpertsOfTheMoeModelAre95MegabytesALayer) {
  const ModelPlan plan = PresetPlan("26b-a4b");
  const int64_t expert = MakeLayerFootprint(plan, 0).experts / plan.moe->num_experts;
  EXPECT_EQ(fmt::format("{:.1f} MB", 2e-6 * static_cast<double>(8 * expert)), "95.2 MB");
}

TEST(Footprint, LayersSumToTheWhole) {
  for (const std::string& preset : PresetNames()) {
    const ModelPlan plan = PresetPlan(preset);
    const Footprint footprint = MakeFootprint(plan);
    int64_t layers = 0, experts = 0;
    for (const LayerPlan& layer : plan.layers) {
      layers += MakeLayerFootprint(plan, layer.index).total;
      experts += MakeLayerFootprint(plan, layer.index).experts;
    }
    EXPECT_EQ(layers, footprint.layers) << preset;
    EXPECT_EQ(experts, footprint.experts) << preset;
  }
}

}  // namespace
}  // namespace lapidary
