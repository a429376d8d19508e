// `lapidary inspect`: a model's layers, sizes and memory figures, from its config alone.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <map>
#include <vector>

#include "apps/commands.h"
#include "apps/load_flags.h"
#include "apps/lora_flag.h"
#include "apps/named_models.h"
#include "gguf/gguf_checkpoint.h"
#include "gguf/mmproj.h"
#include "kv/kv_layout.h"
#include "load/model_directory.h"
#include "load/stored_weights.h"
#include "model/footprint.h"
#include "model/shard.h"
#include "model/weight_table.h"

namespace lapidary {
namespace {

constexpr int64_t kBf16Bytes = 2;

// What a GGUF file stores, by type.
struct StoredType {
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;
};
Result<std::map<std::string, StoredType>> StoredTypes(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const GgufCheckpoint checkpoint, GgufCheckpoint::Open(path));
  std::map<std::string, StoredType> types;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    StoredType& type = types[DTypeName(tensor.dtype)];
    ++type.num_tensors;
    type.num_bytes += tensor.num_bytes();
  }
  return types;
}

// A file of image and audio towers beside a GGUF file.
struct TowerFile {
  std::string name;
  std::string problem;                  // that it cannot be read; empty: none
  std::vector<std::string> projectors;  // "gemma4v", "gemma4a": into the decoder
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;
  bool is_used = false;
};
TowerFile ReadTowerFile(const std::filesystem::path& path) {
  TowerFile file;
  file.name = path.filename().string();
  const auto checkpoint = GgufCheckpoint::Open(path);
  if (!checkpoint.ok()) {
    file.problem = checkpoint.error().message;
    return file;
  }
  for (const char* key :
       {"clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type"}) {
    const auto projector = checkpoint->String(key);
    if (projector) file.projectors.push_back(ShortUtf8(*projector, 40));
  }
  for (const auto& [name, tensor] : checkpoint->tensors()) {
    ++file.num_tensors;
    file.num_bytes += tensor.num_bytes();
  }
  return file;
}
std::vector<TowerFile> FilesOfTowers(const ModelDescription& model) {
  std::vector<TowerFile> files;
  for (const std::filesystem::path& file : MmprojFilesBeside(*model.gguf_file)) {
    files.push_back(ReadTowerFile(file));
    files.back().is_used = model.towers == file;
  }
  return files;
}

Json LayerJson(const LayerPlan& layer) {
  Json json;
  json["index"] = layer.index;
  json["kind"] = AttentionKindName(layer.kind);
  json["head_dim"] = layer.head_dim;
  json["num_heads"] = layer.num_heads;
  json["num_kv_heads"] = layer.num_kv_heads;
  json["rope_theta"] = layer.rope.theta;
  json["rope_turned_dims"] = 2 * layer.rope.num_rotary_pairs;
  json["window"] = layer.window == 0 ? Json(nullptr) : Json(layer.window);
  json["owns_kv"] = layer.owns_kv();
  json["kv_layer"] = layer.kv_layer;
  json["k_is_v"] = layer.k_is_v;
  json["mlp_width"] = layer.mlp_width;
  json["moe"] = layer.has_moe;
  return json;
}

Json InspectJson(const ModelDescription& model) {
  const ModelPlan& plan = model.plan;
  const Footprint footprint = MakeFootprint(plan);
  Json json;
  json["model"] = model.name;
  json["architecture"] = plan.architecture;
  json["hidden_size"] = plan.hidden_size;
  json["vocab_size"] = plan.vocab_size;
  json["max_context"] = plan.max_context;
  json["layers"] = Json::array();
  for (const LayerPlan& layer : plan.layers) json["layers"].push_back(LayerJson(layer));
  const std::pair<const char*, int64_t> parts[] = {
      {"embed_tokens", footprint.embedding},
      {"lm_head", footprint.head},
      {"embed_tokens_per_layer", footprint.per_layer_embedding},
      {"per_layer_model_projection", footprint.per_layer_projection},
      {"layers", footprint.layers},
      {"experts", footprint.experts},
      {"norm", footprint.final_norm},
      {"total", footprint.total()},
      {"unused_shared_kv", footprint.unused_shared_kv},
  };
  for (const auto& [name, count] : parts) {
    json["parameters"][name] = count;
    json["bytes"][name] = count * kBf16Bytes;
  }
  json["parameters_read_per_token"] = footprint.read_per_token;
  json["bytes_read_per_token"] = footprint.read_per_token * kBf16Bytes;
  json["bytes_gathered_per_token"] = footprint.gathered_per_token * kBf16Bytes;
  for (const KvGroupPlan& group : plan.kv_groups) {
    const char* name = AttentionKindName(group.kind);
    json["kv_bytes_per_token"][name] = group.reference_values_per_token * kBf16Bytes;
    json["kv_bytes_per_token_stored"][name] = group.stored_values_per_token * kBf16Bytes;
  }
  return json;
}

void PrintLayers(const ModelPlan& plan) {
  fmt::print("{:>5}  {:<7}  {:>8}  {:>5}  {:>8}  {:>6}  {:>6}  {:<10}  {:>9}  {}\n", "layer",
             "kind", "head_dim", "heads", "kv_heads", "window", "rotary", "kv", "mlp", "extra");
  for (const LayerPlan& layer : plan.layers) {
    const std::string kv = !layer.owns_kv() ? fmt::format("of {}", layer.kv_layer)
                           : layer.k_is_v   ? "own, K=V"
                                            : "own";
    std::string extra;
    if (layer.has_moe) {
      extra = fmt::format("{} of {} experts x {}", plan.moe->top_k, plan.moe->num_experts,
                          plan.moe->expert_width);
    } else if (plan.ple) {
      extra = fmt::format("PLE {}", plan.ple->width);
    }
    fmt::print("{:>5}  {:<7}  {:>8}  {:>5}  {:>8}  {:>6}  {:>6}  {:<10}  {:>9}  {}\n", layer.index,
               AttentionKindName(layer.kind), layer.head_dim, layer.num_heads, layer.num_kv_heads,
               layer.window == 0 ? "-" : fmt::format("{}", layer.window),
               2 * layer.rope.num_rotary_pairs, kv, layer.mlp_width, extra);
  }
}

void PrintSizes(const ModelPlan& plan) {
  const Footprint footprint = MakeFootprint(plan);
  const auto row = [](const char* name, int64_t count) {
    if (count == 0) return;
    fmt::print("{:<34}{:>12.2f} M  {:>10.3f} GB\n", name, 1e-6 * static_cast<double>(count),
               1e-9 * static_cast<double>(count * kBf16Bytes));
  };
  fmt::print("\n{:<34}{:>14}  {:>13}\n", "component", "parameters", "bf16 bytes");
  row(plan.has_own_head ? "embed_tokens" : "embed_tokens (also the head)", footprint.embedding);
  row("lm_head", footprint.head);
  row("embed_tokens_per_layer", footprint.per_layer_embedding);
  row("per_layer_model_projection", footprint.per_layer_projection);
  row("layers", footprint.layers);
  row("experts", footprint.experts);
  row("total", footprint.total());
  row("in some files, never read", footprint.unused_shared_kv);
  row("read per token at batch 1", footprint.read_per_token);
  fmt::print("{:<34}{:>30.1f} kB\n", "gathered rows per token",
             1e-3 * static_cast<double>(footprint.gathered_per_token * kBf16Bytes));
  fmt::print("\n{:<34}{:>14}  {:>13}\n", "KV bytes per token (bf16)", "reference", "as stored");
  for (const KvGroupPlan& group : plan.kv_groups) {
    const std::string name = group.window == 0
                                 ? "full layers"
                                 : fmt::format("sliding layers (last {} kept)", group.window);
    fmt::print("{:<34}{:>14}  {:>13}\n", name, group.reference_values_per_token * kBf16Bytes,
               group.stored_values_per_token * kBf16Bytes);
  }
}

// What each of several ranks has, in bf16.
struct RankSizes {
  int num_heads = 0;
  std::array<int, kNumKvGroups> num_kv_heads{};
  int64_t weight_bytes = 0;
  int64_t bytes_read_per_token = 0;
  std::array<int64_t, kNumKvGroups> kv_bytes_per_token{};
};
Result<std::vector<RankSizes>> SizesOfRanks(const ModelPlan& plan, int num_ranks) {
  std::vector<RankSizes> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    auto shard = ShardOf(plan, rank, num_ranks);
    if (!shard.ok()) {
      return MakeError("--tensor-parallel-size {}: {}", num_ranks, shard.error().message);
    }
    const Footprint footprint = MakeFootprint(shard->plan);
    RankSizes& sizes = ranks.emplace_back();
    sizes.weight_bytes = footprint.total() * kBf16Bytes;
    sizes.bytes_read_per_token = footprint.read_per_token * kBf16Bytes;
    for (const LayerPlan& layer : shard->plan.layers) {
      sizes.num_heads = layer.num_heads;
      sizes.num_kv_heads[KvGroupOf(layer.kind)] = layer.num_kv_heads;
    }
    for (int group = 0; group < kNumKvGroups; ++group) {
      sizes.kv_bytes_per_token[group] =
          shard->plan.kv_groups[group].stored_values_per_token * kBf16Bytes;
    }
  }
  return ranks;
}

void PrintRanks(const std::vector<RankSizes>& ranks) {
  fmt::print("\n{:<6}{:>7}{:>18}{:>17}{:>20}{:>27}\n", "rank", "heads", "KV sliding, full",
             "bf16 weights", "read per token", "KV per token sliding, full");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankSizes& sizes = ranks[rank];
    fmt::print(
        "{:<6}{:>7}{:>18}{:>14.3f} GB{:>17.3f} GB{:>25} B\n", rank, sizes.num_heads,
        fmt::format("{}, {}", sizes.num_kv_heads[kSlidingGroup], sizes.num_kv_heads[kFullGroup]),
        1e-9 * static_cast<double>(sizes.weight_bytes),
        1e-9 * static_cast<double>(sizes.bytes_read_per_token),
        fmt::format("{}, {}", sizes.kv_bytes_per_token[kSlidingGroup],
                    sizes.kv_bytes_per_token[kFullGroup]));
  }
}

Json RanksJson(const std::vector<RankSizes>& ranks) {
  Json json = Json::array();
  for (const RankSizes& sizes : ranks) {
    json.push_back({{"num_heads", sizes.num_heads},
                    {"num_kv_heads",
                     {{"sliding", sizes.num_kv_heads[kSlidingGroup]},
                      {"full", sizes.num_kv_heads[kFullGroup]}}},
                    {"weight_bytes", sizes.weight_bytes},
                    {"bytes_read_per_token", sizes.bytes_read_per_token},
                    {"kv_bytes_per_token_stored",
                     {{"sliding", sizes.kv_bytes_per_token[kSlidingGroup]},
                      {"full", sizes.kv_bytes_per_token[kFullGroup]}}}});
  }
  return json;
}

void PrintStoredTypes(const std::map<std::string, StoredType>& types) {
  fmt::print("\n{:<34}{:>14}  {:>13}\n", "stored as", "tensors", "bytes");
  for (const auto& [name, type] : types) {
    fmt::print("{:<34}{:>14}  {:>10.3f} GB\n", name, type.num_tensors,
               1e-9 * static_cast<double>(type.num_bytes));
  }
}

// How CPU and GPU would keep the weights of a file, or of a preset that is to be rounded; or why
// not.
struct DeviceTable {
  const char* device;
  std::vector<WeightRow> rows;
  std::string problem;
};
Result<std::vector<DeviceTable>> TabulateDevices(const ModelDescription& model,
                                                 const LoadOptions& wanted) {
  ASSIGN_OR_RETURN(const auto source, FindStoredWeights(model));
  const bool is_rounded = wanted.quantisation || wanted.head_bits != 0;
  if (source == nullptr && !is_rounded) return std::vector<DeviceTable>();
  std::vector<DeviceTable> tables = {{"gpu", {}, ""}, {"cpu", {}, ""}};
  for (DeviceTable& table : tables) {
    const bool is_gpu = table.device == std::string_view("gpu");
    const auto plan = WeightPlan::Make(RequiredTensors(model.plan), source.get(),
                                       {.reader = is_gpu ? WeightReader::kGpu : WeightReader::kCpu,
                                        .rounding = wanted.quantisation,
                                        .head_bits = wanted.head_bits});
    if (plan.ok()) {
      table.rows = TabulateWeights(*plan);
    } else if (is_gpu) {
      table.problem = plan.error().message;
    } else {
      return plan.error();
    }
  }
  return tables;
}

void PrintWeights(const DeviceTable& table) {
  const bool is_gpu = table.device == std::string_view("gpu");
  if (!table.problem.empty()) {
    fmt::print("\nnot on a GPU: {}\n", table.problem);
    return;
  }
  fmt::print("\n{:<22}{:>8}  {:<22}{:>10}  {:<14}{:>10}  {}\n",
             is_gpu ? "weights on a GPU" : "weights on a CPU", "tensors", "stored as", "GB",
             "in memory as", "GB", "kernels read");
  for (const WeightRow& row : table.rows) {
    fmt::print("{:<22}{:>8}  {:<22}{:>10.3f}  {:<14}{:>10.3f}  {}\n", row.tensors, row.num_tensors,
               row.stored, 1e-9 * static_cast<double>(row.stored_bytes), row.loaded,
               1e-9 * static_cast<double>(row.loaded_bytes), row.kernels);
  }
}

Json WeightsJson(const std::vector<WeightRow>& rows) {
  Json json = Json::array();
  for (const WeightRow& row : rows) {
    json.push_back({{"tensors", row.tensors},
                    {"count", row.num_tensors},
                    {"stored", row.stored},
                    {"stored_bytes", row.stored_bytes},
                    {"loaded", row.loaded},
                    {"loaded_bytes", row.loaded_bytes},
                    {"kernels", row.kernels}});
  }
  return json;
}

void PrintTowerFile(const TowerFile& file) {
  if (!file.problem.empty()) {
    fmt::print("\n{} beside it cannot be read: {}\n", file.name, file.problem);
    return;
  }
  fmt::print("\n{} beside it: towers ({}), {} tensors, {:.3f} GB, {}\n", file.name,
             fmt::join(file.projectors, ", "), file.num_tensors,
             1e-9 * static_cast<double>(file.num_bytes), file.is_used ? "used" : "not used");
}

Json AdapterJson(const Adapter& adapter) {
  return {{"modules", adapter.num_modules()},
          {"applied", adapter.num_applied()},
          {"ignored_shared_kv", adapter.num_ignored()},
          {"max_rank", adapter.max_rank()},
          {"bytes", adapter.num_bytes()},
          {"digest", fmt::format("{:016x}", adapter.digest())}};
}

Status Inspect(const std::string& name, const LoadOptions& wanted, const LoraFlag& lora,
               bool as_json) {
  ASSIGN_OR_RETURN(const ModelDescription model, DescribeModel(name));
  ASSIGN_OR_RETURN(const auto adapter, lora.Load(model.plan));
  const int num_ranks = wanted.num_ranks;
  ASSIGN_OR_RETURN(const std::vector<RankSizes> ranks, SizesOfRanks(model.plan, num_ranks));
  std::map<std::string, StoredType> stored;
  std::vector<TowerFile> towers;
  if (model.gguf_file) {
    ASSIGN_OR_RETURN(stored, StoredTypes(*model.gguf_file));
    towers = FilesOfTowers(model);
  }
  ASSIGN_OR_RETURN(const std::vector<DeviceTable> tables, TabulateDevices(model, wanted));
  if (as_json) {
    Json json = InspectJson(model);
    if (num_ranks > 1) json["ranks"] = RanksJson(ranks);
    if (adapter) json["lora"] = AdapterJson(*adapter);
    for (const DeviceTable& table : tables) {
      json["weights"][table.device] =
          table.problem.empty() ? WeightsJson(table.rows) : Json(table.problem);
    }
    for (const auto& [type_name, type] : stored) {
      json["stored"][type_name] = {{"tensors", type.num_tensors}, {"bytes", type.num_bytes}};
    }
    for (const TowerFile& file : towers) {
      json["mmproj"].push_back({{"file", file.name},
                                {"projectors", file.projectors},
                                {"tensors", file.num_tensors},
                                {"bytes", file.num_bytes},
                                {"used", file.is_used}});
      if (!file.problem.empty()) json["mmproj"].back()["problem"] = file.problem;
    }
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  fmt::print("{}: {}, hidden {}, vocabulary {}, context {}\n\n", model.name,
             model.plan.architecture, model.plan.hidden_size, model.plan.vocab_size,
             model.plan.max_context);
  PrintLayers(model.plan);
  PrintSizes(model.plan);
  if (num_ranks > 1) PrintRanks(ranks);
  for (const DeviceTable& table : tables) PrintWeights(table);
  if (adapter) {
    fmt::print("\nLoRA adapter: applied {}, {:.3f} GB\n", adapter->Summary(),
               1e-9 * static_cast<double>(adapter->num_bytes()));
  }
  if (!model.gguf_file) return {};
  PrintStoredTypes(stored);
  for (const TowerFile& file : towers) PrintTowerFile(file);
  return {};
}

}  // namespace

void AddInspectCommand(CommandLine& command_line) {
  struct Flags {
    std::string model;
    LoadFlags load;
    LoraFlag lora;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = command_line.Add(
      "inspect", "Show a model's layers, parameters, bytes and KV sizes", [flags]() -> Status {
        const auto found = FindModel(&flags->model, {.weights = false, .text = false});
        if (!found.ok()) return found.error();
        return Inspect(flags->model, flags->load.Options(), flags->lora, flags->json);
      });
  command
      ->add_option(
          "model", flags->model,
          "Checkpoint directory, GGUF file, model of the Hub, or a preset: e2b e4b 12b 26b-a4b "
          "31b")
      ->required();
  flags->load.AddTo(*command, {"quantization", "head-bits", "tensor-parallel-size"});
  flags->lora.AddTo(*command);
  command->add_flag("--json", flags->json, "Print one JSON object");
}

}  // namespace lapidary
