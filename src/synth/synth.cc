#include "synth/synth.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>

#include "base/progress.h"
#include "checkpoint/safetensors.h"
#include "model/plan.h"
#include "model/synthetic_values.h"
#include "model/tensor_specs.h"
#include "synth/byte_tokenizer.h"
#include "towers/tower_specs.h"

namespace lapidary {

extern const std::string_view kChatTemplateSmall;
extern const std::string_view kChatTemplateLarge;

namespace {

// A tensor to write: drawn from its spec, all NaN, or ready bytes (integer tensors).
struct PlannedTensor {
  std::string file_name;  // as in the file, prefix included
  TensorSpec spec;
  DType dtype = DType::kBF16;
  bool is_poison = false;
  std::string bytes;  // non-empty: written as they are

  int64_t num_bytes() const { return spec.num_elements() * DTypeSize(dtype); }
};

Status WriteText(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return MakeError("cannot write {}", path.string());
  return {};
}

Status PrepareDirectory(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::exists(directory, error) &&
      !(std::filesystem::is_directory(directory, error) &&
        std::filesystem::is_empty(directory, error))) {
    return MakeError("{} already exists and is not an empty directory", directory.string());
  }
  std::filesystem::create_directories(directory, error);
  if (error) return MakeError("cannot create {}: {}", directory.string(), error.message());
  return {};
}

void FillPiece(const PlannedTensor& tensor, uint64_t seed, int64_t first_element,
               std::span<std::byte> out) {
  if (!tensor.bytes.empty()) {
    std::memcpy(out.data(), tensor.bytes.data() + first_element * DTypeSize(tensor.dtype),
                out.size());
  } else if (tensor.is_poison) {
    std::fill(out.begin(), out.end(), std::byte{0xff});  // NaN in every float format
  } else {
    FillSyntheticStored(tensor.spec, seed, first_element, tensor.dtype, out);
  }
}

Status WriteShard(const std::filesystem::path& path, std::span<const PlannedTensor> tensors,
                  uint64_t seed, Progress& progress, ThreadPool& threads) {
  std::vector<SafetensorsEntry> entries;
  for (const PlannedTensor& tensor : tensors) {
    entries.push_back({tensor.file_name, tensor.dtype, tensor.spec.shape});
  }
  std::ofstream file(path, std::ios::binary);
  const std::string header = MakeSafetensorsHeader(entries, {{"format", "pt"}});
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  // Pieces of a tensor are made by all threads, then written in order.
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  std::vector<std::byte> buffer(kPieceBytes * 4 * threads.num_threads());
  for (const PlannedTensor& tensor : tensors) {
    const int64_t total = tensor.num_bytes();
    for (int64_t done = 0; done < total; done += static_cast<int64_t>(buffer.size())) {
      const int64_t bytes = std::min<int64_t>(total - done, static_cast<int64_t>(buffer.size()));
      threads.ParallelFor(bytes, kPieceBytes, [&](int64_t begin, int64_t end, int) {
        FillPiece(tensor, seed, (done + begin) / DTypeSize(tensor.dtype),
                  std::span(buffer).subspan(begin, end - begin));
      });
      file.write(reinterpret_cast<const char*>(buffer.data()), bytes);
      if (!file) return MakeError("cannot write {} (disk full?)", path.string());
      progress.Advance(bytes);
    }
  }
  file.close();
  if (!file) return MakeError("cannot write {} (disk full?)", path.string());
  return {};
}

// model.safetensors, or numbered shards with an index.
Status WriteWeights(const std::filesystem::path& directory, std::span<const PlannedTensor> tensors,
                    const SynthOptions& options, ThreadPool& threads) {
  std::vector<std::pair<size_t, size_t>> shards;  // [begin, end) of tensors
  int64_t total_bytes = 0;
  int64_t shard_bytes = 0;
  for (size_t idx = 0; idx < tensors.size(); ++idx) {
    const int64_t bytes = tensors[idx].num_bytes();
    if (shards.empty() || shard_bytes + bytes > options.max_shard_bytes) {
      shards.emplace_back(idx, idx);
      shard_bytes = 0;
    }
    shards.back().second = idx + 1;
    shard_bytes += bytes;
    total_bytes += bytes;
  }
  Progress progress("writing weights", total_bytes, Progress::Unit::kBytes);
  if (shards.size() == 1) {
    return WriteShard(directory / "model.safetensors", tensors, options.seed, progress, threads);
  }
  Json index;
  index["metadata"]["total_size"] = total_bytes;
  for (size_t shard_idx = 0; shard_idx < shards.size(); ++shard_idx) {
    const auto [begin, end] = shards[shard_idx];
    const std::string name =
        fmt::format("model-{:05}-of-{:05}.safetensors", shard_idx + 1, shards.size());
    RETURN_IF_ERROR(WriteShard(directory / name, tensors.subspan(begin, end - begin), options.seed,
                               progress, threads));
    for (size_t idx = begin; idx < end; ++idx) index["weight_map"][tensors[idx].file_name] = name;
  }
  return WriteText(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

Json GenerationConfig(bool unified) {
  Json config;
  config["bos_token_id"] = 2;
  config["do_sample"] = true;
  config["eos_token_id"] = Json::array({1, 106, 50});
  config["pad_token_id"] = 0;
  config["temperature"] = 1.0;
  config["top_k"] = 64;
  config["top_p"] = 0.95;
  if (unified) config["suppress_tokens"] = Json::array({258883, 258882});
  return config;
}

Status WriteTokenizer(const ModelPlan& plan, const std::filesystem::path& directory) {
  const auto tokenizer = ByteTokenizer(plan.vocab_size);
  if (!tokenizer) {
    std::fprintf(stderr, "no tokenizer written: %s\n", tokenizer.error().message.c_str());
    return {};
  }
  RETURN_IF_ERROR(WriteText(directory / "tokenizer.json", tokenizer->dump() + "\n"));
  const Json tokenizer_config = {{"add_bos_token", false}, {"bos_token", "<bos>"},
                                 {"eos_token", "<eos>"},   {"pad_token", "<pad>"},
                                 {"unk_token", "<unk>"},   {"tokenizer_class", "GemmaTokenizer"}};
  return WriteText(directory / "tokenizer_config.json", tokenizer_config.dump(2) + "\n");
}

}  // namespace

Status WriteSyntheticCheckpoint(const Json& config, const SynthOptions& options,
                                const std::filesystem::path& directory, ThreadPool& threads) {
  ASSIGN_OR_RETURN(const ModelConfig parsed, ParseModelConfig(config, "the configuration"));
  ASSIGN_OR_RETURN(const ModelPlan plan, MakeModelPlan(parsed));
  ASSIGN_OR_RETURN(const TowersPlan towers, MakeTowersPlan(config, "the configuration"));
  RETURN_IF_ERROR(PrepareDirectory(directory));

  const std::string prefix = plan.is_multimodal ? "model.language_model." : "model.";
  std::vector<PlannedTensor> tensors;
  for (TensorSpec& spec : RequiredTensors(plan)) {
    std::string name = prefix + spec.name;
    tensors.push_back({std::move(name), std::move(spec), options.dtype, false, {}});
  }
  for (const auto& specs : {VisionTensors(towers), AudioTensors(towers)}) {
    for (const TensorSpec& spec : specs) {
      tensors.push_back({"model." + spec.name, spec, options.dtype, false, {}});
    }
  }
  if (options.poison_unused) {
    for (TensorSpec& spec : UnusedSharedKvTensors(plan)) {
      std::string name = prefix + spec.name;
      tensors.push_back({std::move(name), std::move(spec), options.dtype, true, {}});
    }
    if (plan.is_multimodal && !towers.has_vision() && !towers.has_audio()) {
      for (const char* name : {"model.vision_tower.patch_embedder.input_proj.weight",
                               "model.audio_tower.output_proj.weight",
                               "model.embed_vision.embedding_projection.weight"}) {
        TensorSpec spec{name, {8, 8}, TensorComponent::kLayerOther, TensorRole::kMatrix};
        tensors.push_back({name, std::move(spec), options.dtype, true, {}});
      }
    }
  }
  RETURN_IF_ERROR(WriteText(directory / "config.json", config.dump(2) + "\n"));
  const bool unified = plan.architecture.find("Unified") != std::string::npos;
  RETURN_IF_ERROR(
      WriteText(directory / "generation_config.json", GenerationConfig(unified).dump(2) + "\n"));
  RETURN_IF_ERROR(WriteTokenizer(plan, directory));
  RETURN_IF_ERROR(WriteText(directory / "chat_template.jinja",
                            plan.ple ? kChatTemplateSmall : kChatTemplateLarge));
  return WriteWeights(directory, tensors, options, threads);
}

Status WriteSyntheticAssistant(const Json& config, const SynthOptions& options,
                               const std::filesystem::path& directory, ThreadPool& threads) {
  ASSIGN_OR_RETURN(const AssistantConfig parsed, ParseAssistantConfig(config, "the assistant"));
  const AssistantPlan plan = MakeAssistantPlan(parsed);
  RETURN_IF_ERROR(PrepareDirectory(directory));
  std::set<std::string> decoder_names;
  for (const TensorSpec& spec : RequiredTensors(plan.decoder)) decoder_names.insert(spec.name);
  std::vector<PlannedTensor> tensors;
  for (TensorSpec& spec : RequiredTensors(plan)) {
    std::string name = (decoder_names.contains(spec.name) ? "model." : "") + spec.name;
    tensors.push_back({std::move(name), std::move(spec), options.dtype, false, {}});
  }
  if (plan.ordered_head) {
    const std::vector<int64_t> ordering = SyntheticTokenOrdering(plan.decoder.vocab_size);
    PlannedTensor tensor;
    tensor.file_name = kTokenOrdering;
    tensor.spec.name = tensor.file_name;
    tensor.spec.shape = {plan.decoder.vocab_size};
    tensor.dtype = DType::kI64;
    tensor.bytes.assign(reinterpret_cast<const char*>(ordering.data()),
                        ordering.size() * sizeof(int64_t));
    tensors.push_back(std::move(tensor));
  }
  RETURN_IF_ERROR(WriteText(directory / "config.json", config.dump(2) + "\n"));
  RETURN_IF_ERROR(WriteText(directory / "generation_config.json",
                            Json({{"bos_token_id", 2}, {"eos_token_id", 1}}).dump(2) + "\n"));
  SynthOptions apart = options;
  apart.seed = AssistantSeed(options.seed);
  return WriteWeights(directory, tensors, apart, threads);
}

}  // namespace lapidary
