#include "gguf/mmproj.h"

#include <algorithm>
#include <cmath>

#include "gguf/config_keys.h"

namespace lapidary {
namespace {

constexpr const char* kBounds[] = {"input_min", "input_max", "output_min", "output_max"};
constexpr int64_t kMaxLayers = 1024;

// What turns rows of a tower into the decoder's: "gemma4v", "gemma4a", or of the unified model
// "gemma4uv", "gemma4ua"; empty: there is no such tower.
std::string ProjectorOf(const GgufCheckpoint& mmproj, const char* kind) {
  const auto own = mmproj.String(fmt::format("clip.{}.projector_type", kind));
  if (own) return std::string(*own);
  const bool is_there = mmproj.Value(fmt::format("clip.{}.embedding_length", kind)) != nullptr;
  return std::string(is_there ? mmproj.String("clip.projector_type").value_or("") : "");
}

// Null unless its values can be read as floats.
const TensorView* FindFloats(const GgufCheckpoint& file, const std::string& name) {
  const TensorView* tensor = file.Find(name);
  const bool has_floats =
      tensor != nullptr && (IsWeightDType(tensor->dtype) || IsBlockDType(tensor->dtype));
  return has_floats ? tensor : nullptr;
}

// A dim of a tensor, counted as Hugging Face does; 0: there is none.
int64_t Extent(const GgufCheckpoint& mmproj, const std::string& name, size_t dim) {
  const TensorView* tensor = mmproj.Find(name);
  return tensor != nullptr && dim < tensor->shape.size() ? tensor->shape[dim] : 0;
}

Json VisionConfig(const GgufCheckpoint& mmproj, bool is_unified, ConfigKeys& keys) {
  Json config;
  config["patch_size"] = keys.Int("patch_size");
  config["pooling_kernel_size"] = keys.IntOr("projector.scale_factor", 3);
  const int64_t num_positions = Extent(mmproj, "v.position_embd.weight", 1);
  if (is_unified) {
    config["mm_embed_dim"] = keys.Int("embedding_length");
    config["mm_posemb_size"] = num_positions;
    return config;
  }
  const int64_t num_heads = std::max<int64_t>(keys.Int("attention.head_count"), 1);
  config["hidden_size"] = keys.Int("embedding_length");
  config["num_hidden_layers"] = keys.Int("block_count");
  config["num_attention_heads"] = num_heads;
  config["head_dim"] = Extent(mmproj, "v.blk.0.attn_q.weight", 0) / num_heads;
  config["intermediate_size"] = keys.Int("feed_forward_length");
  config["position_embedding_size"] = num_positions;
  config["rms_norm_eps"] = keys.NumberOr("attention.layer_norm_epsilon", 1e-6);
  config["use_clipped_linears"] = mmproj.Find("v.blk.0.attn_q.input_max") != nullptr;
  config["standardize"] = mmproj.Find("v.std_bias") != nullptr;
  if (mmproj.Find("v.blk.0.out_scale.weight") != nullptr) {
    keys.Fail("{}: scaled layers of its image tower are not supported", mmproj.path().string());
  }
  return config;
}

// Its eps is left out: converters wrote one that is not the model's.
Json AudioConfig(const GgufCheckpoint& mmproj, bool is_unified, ConfigKeys& keys) {
  Json config;
  if (is_unified) {
    config["audio_embed_dim"] = Extent(mmproj, "mm.a.input_projection.weight", 1);
    return config;
  }
  config["hidden_size"] = keys.Int("embedding_length");
  config["num_hidden_layers"] = keys.Int("block_count");
  config["num_attention_heads"] = keys.Int("attention.head_count");
  config["conv_kernel_size"] = Extent(mmproj, "a.blk.0.conv_dw.weight", 1);
  config["subsampling_conv_channels"] = {Extent(mmproj, "a.conv1d.0.weight", 0),
                                         Extent(mmproj, "a.conv1d.1.weight", 0)};
  config["output_proj_dims"] = Extent(mmproj, "a.pre_encode.out.weight", 0);
  config["use_clipped_linears"] = mmproj.Find("a.blk.0.attn_q.input_max") != nullptr;
  return config;
}

void AddPlaceholders(const GgufCheckpoint& model, Json& config) {
  constexpr std::pair<const char*, std::string_view> kTokens[] = {
      {"image_token_id", "<|image|>"}, {"audio_token_id", "<|audio|>"},
      {"video_token_id", "<|video|>"}, {"boi_token_id", "<|image>"},
      {"eoi_token_id", "<image|>"},    {"boa_token_id", "<|audio>"},
      {"eoa_token_id", "<audio|>"}};
  const GgufValue* value = model.Value("tokenizer.ggml.tokens");
  const auto tokens = value == nullptr ? std::nullopt : value->Strings();
  if (!tokens) return;
  for (const auto& [key, text] : kTokens) {
    const auto it = std::find(tokens->begin(), tokens->end(), text);
    if (it != tokens->end()) config[key] = it - tokens->begin();
  }
}

// The converter of the audio tower stores log(1 + e^x) of it.
float InverseSoftplus(float value) {
  return static_cast<float>(std::log(std::expm1(double{value})));
}

// [rows, 3, side, side] -> [rows, side, side, 3]: converters turn the order of a patch's values.
std::vector<float> ChannelsLast(const std::vector<float>& from, int64_t rows) {
  const int64_t pixels = static_cast<int64_t>(from.size()) / rows / 3;
  std::vector<float> to(from.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (int64_t channel = 0; channel < 3; ++channel) {
        to[(row * pixels + pixel) * 3 + channel] = from[(row * 3 + channel) * pixels + pixel];
      }
    }
  }
  return to;
}

}  // namespace

std::vector<std::filesystem::path> MmprojFilesBeside(const std::filesystem::path& model) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::absolute(model, error).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.find("mmproj") == std::string::npos || !name.ends_with(".gguf")) continue;
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Result<Json> ConfigWithTowers(const GgufCheckpoint& model, const Json& decoder,
                              const GgufCheckpoint& mmproj) {
  const std::string where = mmproj.path().string();
  const std::string vision = ProjectorOf(mmproj, "vision");
  const std::string audio = ProjectorOf(mmproj, "audio");
  const bool is_unified = vision == "gemma4uv" || audio == "gemma4ua";
  if ((vision.empty() && audio.empty()) ||
      !(vision.empty() || vision == (is_unified ? "gemma4uv" : "gemma4v")) ||
      !(audio.empty() || audio == (is_unified ? "gemma4ua" : "gemma4a"))) {
    return MakeError("{}: projectors '{}' and '{}' are not Gemma 4's", where, ShortUtf8(vision, 40),
                     ShortUtf8(audio, 40));
  }
  Json config;
  config["architectures"] = {is_unified ? "Gemma4UnifiedForConditionalGeneration"
                                        : "Gemma4ForConditionalGeneration"};
  config["text_config"] = decoder;
  // Not in the file: of all sizes, those without per-layer embeddings do it.
  if (decoder.value("hidden_size_per_layer_input", 0) == 0) {
    config["text_config"]["use_bidirectional_attention"] = "vision";
  }
  for (const auto& [kind, projector] : {std::pair("vision", vision), {"audio", audio}}) {
    if (projector.empty()) continue;
    ConfigKeys keys(mmproj, fmt::format("clip.{}", kind));
    const bool is_vision = std::string_view(kind) == "vision";
    config[fmt::format("{}_config", kind)] =
        is_vision ? VisionConfig(mmproj, is_unified, keys) : AudioConfig(mmproj, is_unified, keys);
    RETURN_IF_ERROR(keys.status());
    const char* projection =
        is_vision ? "mm.input_projection.weight" : "mm.a.input_projection.weight";
    const auto hidden = decoder.at("hidden_size").get<int64_t>();
    if (Extent(mmproj, projection, 0) != hidden) {
      return MakeError("{}: its towers make rows of {}, the model has rows of {}", where,
                       Extent(mmproj, projection, 0), hidden);
    }
  }
  AddPlaceholders(model, config);
  return config;
}

Result<MmprojTensors> MmprojTensors::Open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(GgufCheckpoint file, GgufCheckpoint::Open(path));
  MmprojTensors tensors(std::move(file));
  if (ProjectorOf(tensors.file_, "vision") == "gemma4uv") {
    tensors.AddCells();
  } else {
    tensors.AddVision();
  }
  tensors.AddAudio();
  return tensors;
}

const TensorView* MmprojTensors::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

void MmprojTensors::Add(const std::string& name, const std::string& stored) {
  const TensorView* tensor = file_.Find(stored);
  if (tensor == nullptr) return;
  if (IsBlockDType(tensor->dtype)) return AddFloats(name, ToFloats(*tensor), tensor->shape);
  tensors_[name] = *tensor;
}

void MmprojTensors::AddFloats(const std::string& name, std::vector<float> values,
                              std::vector<int64_t> shape) {
  const std::vector<float>& kept = changed_.emplace_back(std::move(values));
  tensors_[name] = {reinterpret_cast<const std::byte*>(kept.data()), DType::kF32, std::move(shape)};
}

namespace {

using Names = std::vector<std::pair<const char*, const char*>>;  // ours, stored

// Layers of a tower: `name` and `stored` with the layer's number, plain weights and clipped ones.
template <typename Add>
void ForLayers(const GgufCheckpoint& file, const char* prefix, const char* stored_prefix,
               const Names& plain, const Names& clipped, const Add& add) {
  for (int64_t layer = 0; layer < kMaxLayers; ++layer) {
    const std::string name = fmt::format("{}{}.", prefix, layer);
    const std::string stored = fmt::format("{}{}.", stored_prefix, layer);
    if (file.Find(fmt::format("{}attn_q.weight", stored)) == nullptr) return;
    for (const auto& [ours, theirs] : plain) {
      add(fmt::format("{}{}.weight", name, ours), fmt::format("{}{}.weight", stored, theirs));
    }
    for (const auto& [ours, theirs] : clipped) {
      add(fmt::format("{}{}.linear.weight", name, ours),
          fmt::format("{}{}.weight", stored, theirs));
      for (const char* bound : kBounds) {
        add(fmt::format("{}{}.{}", name, ours, bound),
            fmt::format("{}{}.{}", stored, theirs, bound));
      }
    }
  }
}

// Bounds of clipped weights are scalars, which the format does not have.
void MakeScalar(const std::string& name, TensorView& tensor) {
  const bool is_bound = name.ends_with("_min") || name.ends_with("_max");
  if (is_bound && tensor.num_elements() == 1) tensor.shape.clear();
}

}  // namespace

void MmprojTensors::AddVision() {
  const std::string prefix = "vision_tower.";
  if (const TensorView* patches = FindFloats(file_, "v.patch_embd.weight");
      patches != nullptr && patches->shape.size() == 4 && patches->shape[1] == 3) {
    const int64_t rows = patches->shape[0];
    AddFloats(prefix + "patch_embedder.input_proj.weight", ChannelsLast(ToFloats(*patches), rows),
              {rows, patches->num_elements() / rows});
  }
  Add(prefix + "patch_embedder.position_embedding_table", "v.position_embd.weight");
  Add(prefix + "std_bias", "v.std_bias");
  Add(prefix + "std_scale", "v.std_scale");
  Add("embed_vision.embedding_projection.weight", "mm.input_projection.weight");
  ForLayers(file_, "vision_tower.encoder.layers.", "v.blk.",
            {{"input_layernorm", "ln1"},
             {"post_attention_layernorm", "attn_post_norm"},
             {"pre_feedforward_layernorm", "ln2"},
             {"post_feedforward_layernorm", "ffn_post_norm"},
             {"self_attn.q_norm", "attn_q_norm"},
             {"self_attn.k_norm", "attn_k_norm"}},
            {{"self_attn.q_proj", "attn_q"},
             {"self_attn.k_proj", "attn_k"},
             {"self_attn.v_proj", "attn_v"},
             {"self_attn.o_proj", "attn_out"},
             {"mlp.gate_proj", "ffn_gate"},
             {"mlp.up_proj", "ffn_up"},
             {"mlp.down_proj", "ffn_down"}},
            [&](const std::string& name, const std::string& stored) {
              Add(name, stored);
              const auto it = tensors_.find(name);
              if (it != tensors_.end()) MakeScalar(name, it->second);
            });
}

void MmprojTensors::AddCells() {
  const std::string prefix = "vision_embedder.";
  const auto add_turned = [&](const std::string& name, const std::string& stored) {
    const TensorView* tensor = FindFloats(file_, stored);
    if (tensor == nullptr || tensor->shape.back() % 3 != 0) return;
    const int64_t rows = tensor->num_elements() / tensor->shape.back();
    AddFloats(prefix + name, ChannelsLast(ToFloats(*tensor), rows), tensor->shape);
  };
  add_turned("patch_dense.weight", "v.patch_embd.weight");
  add_turned("patch_ln1.weight", "v.patch_norm.1.weight");
  add_turned("patch_ln1.bias", "v.patch_norm.1.bias");
  Add(prefix + "patch_dense.bias", "v.patch_embd.bias");
  for (const char* part : {"weight", "bias"}) {
    Add(fmt::format("{}patch_ln2.{}", prefix, part), fmt::format("v.patch_norm.2.{}", part));
    Add(fmt::format("{}pos_norm.{}", prefix, part), fmt::format("v.patch_norm.3.{}", part));
  }
  Add("embed_vision.embedding_projection.weight", "mm.input_projection.weight");
  // [2, positions, hidden] -> [positions, 2, hidden]
  const TensorView* table = FindFloats(file_, "v.position_embd.weight");
  if (table == nullptr || table->shape.size() != 3 || table->shape[0] != 2) return;
  const int64_t positions = table->shape[1];
  const int64_t hidden = table->shape[2];
  const std::vector<float> from = ToFloats(*table);
  std::vector<float> to(from.size());
  for (int64_t row = 0; row < 2 * positions; ++row) {
    std::copy_n(from.begin() + row * hidden, hidden,
                to.begin() + (row % positions * 2 + row / positions) * hidden);
  }
  AddFloats(prefix + "pos_embedding", std::move(to), {positions, 2, hidden});
}

void MmprojTensors::AddAudio() {
  const std::string prefix = "audio_tower.";
  const std::string subsample = prefix + "subsample_conv_projection.";
  for (int layer = 0; layer < 2; ++layer) {
    Add(fmt::format("{}layer{}.conv.weight", subsample, layer),
        fmt::format("a.conv1d.{}.weight", layer));
    Add(fmt::format("{}layer{}.norm.weight", subsample, layer),
        fmt::format("a.conv1d.{}.norm.weight", layer));
  }
  Add(subsample + "input_proj_linear.weight", "a.input_projection.weight");
  Add(prefix + "output_proj.weight", "a.pre_encode.out.weight");
  Add(prefix + "output_proj.bias", "a.pre_encode.out.bias");
  Add("embed_audio.embedding_projection.weight", "mm.a.input_projection.weight");
  ForLayers(file_, "audio_tower.layers.", "a.blk.",
            {{"feed_forward1.pre_layer_norm", "ffn_norm"},
             {"feed_forward1.post_layer_norm", "ffn_post_norm"},
             {"feed_forward2.pre_layer_norm", "ffn_norm_1"},
             {"feed_forward2.post_layer_norm", "ffn_post_norm_1"},
             {"norm_pre_attn", "attn_pre_norm"},
             {"norm_post_attn", "attn_post_norm"},
             {"norm_out", "ln2"},
             {"self_attn.relative_k_proj", "attn_k_rel"},
             // Each has the other's name there.
             {"lconv1d.pre_layer_norm", "conv_norm"},
             {"lconv1d.conv_norm", "norm_conv"},
             {"lconv1d.depthwise_conv1d", "conv_dw"},
             {"self_attn.per_dim_scale", "per_dim_scale"}},
            {{"feed_forward1.ffw_layer_1", "ffn_up"},
             {"feed_forward1.ffw_layer_2", "ffn_down"},
             {"feed_forward2.ffw_layer_1", "ffn_up_1"},
             {"feed_forward2.ffw_layer_2", "ffn_down_1"},
             {"self_attn.q_proj", "attn_q"},
             {"self_attn.k_proj", "attn_k"},
             {"self_attn.v_proj", "attn_v"},
             {"self_attn.post", "attn_out"},
             {"lconv1d.linear_start", "conv_pw1"},
             {"lconv1d.linear_end", "conv_pw2"}},
            [&](const std::string& name, const std::string& stored) {
              Add(name, stored);
              const auto it = tensors_.find(name);
              if (it == tensors_.end()) return;
              TensorView& tensor = it->second;
              MakeScalar(name, tensor);
              if (name.ends_with("depthwise_conv1d.weight") && tensor.shape.size() == 2) {
                tensor.shape.insert(tensor.shape.begin() + 1, 1);
              }
              constexpr std::string_view kScale = "per_dim_scale.weight";
              if (!name.ends_with(kScale) || FindFloats(file_, stored) == nullptr) return;
              std::vector<float> values = ToFloats(tensor);
              for (float& value : values) value = InverseSoftplus(value);
              const std::vector<int64_t> shape = tensor.shape;
              AddFloats(name.substr(0, name.size() - std::string_view(".weight").size()),
                        std::move(values), shape);
            });
}

}  // namespace lapidary
