#include "towers/tower_plan.h"

#include <utility>
#include <vector>

#include "media/log_mel.h"

namespace lapidary {
namespace {

constexpr IntRange kWidth{.min = 1, .max = 1 << 16};
constexpr IntRange kLayers{.min = 1, .max = 1024};
constexpr IntRange kHeads{.min = 1, .max = 1024};
constexpr IntRange kPositions{.min = 1, .max = 1 << 20};
constexpr NumberRange kEps{.min = 0.0, .max = 1.0};

float ReadEps(JsonFields& fields) {
  return static_cast<float>(fields.NumberOr("rms_norm_eps", 1e-6, kEps));
}

void RequireText(JsonFields& fields, const char* key, const char* value) {
  const std::string found = fields.StringOr(key, value);
  if (found != value)
    fields.Fail(fmt::format("{} '{}' is not Gemma 4's", key, found.substr(0, 40)));
}

// The grid that both kinds of vision state.
PatchGrid ReadGrid(JsonFields& fields) {
  return {static_cast<int>(fields.IntOr("patch_size", 16, {.min = 1, .max = 256})),
          static_cast<int>(fields.IntOr("pooling_kernel_size", 3, {.min = 1, .max = 16}))};
}

double ReadRopeTheta(JsonFields& fields) {
  const Json* rope = fields.OptionalObject("rope_parameters");
  if (rope == nullptr) return 100.0;
  JsonFields parameters(*rope, "vision_config: rope_parameters");
  const double theta = parameters.NumberOr("rope_theta", 100.0, {.min = 1.0, .max = 1e12});
  const std::string type = parameters.StringOr("rope_type", "axial");
  if (type != "axial" && type != "default") {
    parameters.Fail(fmt::format("rope_type '{}' is not Gemma 4's", type.substr(0, 40)));
  }
  if (!parameters.status().ok()) fields.Fail(parameters.status().error().message);
  return theta;
}

VisionTowerPlan ReadVisionTower(JsonFields& fields) {
  VisionTowerPlan plan;
  plan.hidden = static_cast<int>(fields.IntOr("hidden_size", 768, kWidth));
  plan.num_layers = static_cast<int>(fields.IntOr("num_hidden_layers", 16, kLayers));
  plan.num_heads = static_cast<int>(fields.IntOr("num_attention_heads", 12, kHeads));
  plan.head_dim = static_cast<int>(fields.IntOr("head_dim", 64, {.min = 4, .max = 1024}));
  plan.mlp_width = static_cast<int>(fields.IntOr("intermediate_size", 3072, kWidth));
  plan.num_positions = static_cast<int>(fields.IntOr("position_embedding_size", 10240, kPositions));
  plan.rope_theta = ReadRopeTheta(fields);
  plan.eps = ReadEps(fields);
  plan.is_clipped = fields.BoolOr("use_clipped_linears", false);
  plan.is_standardized = fields.BoolOr("standardize", false);
  RequireText(fields, "hidden_activation", "gelu_pytorch_tanh");
  if (plan.head_dim % 4 != 0) {
    fields.Fail(fmt::format("head_dim {} does not divide into two rotary halves", plan.head_dim));
  }
  if (fields.IntOr("num_key_value_heads", plan.num_heads, kHeads) != plan.num_heads) {
    fields.Fail(
        "num_key_value_heads differs from num_attention_heads, which Gemma 4's towers do not");
  }
  return plan;
}

CellEmbedderPlan ReadCellEmbedder(JsonFields& fields) {
  CellEmbedderPlan plan;
  plan.hidden = static_cast<int>(fields.IntOr("mm_embed_dim", 3840, kWidth));
  plan.num_positions = static_cast<int>(fields.IntOr("mm_posemb_size", 1120, kPositions));
  plan.eps = ReadEps(fields);
  if (fields.IntOr("output_proj_dims", plan.hidden, kWidth) != plan.hidden) {
    fields.Fail("output_proj_dims differs from mm_embed_dim");
  }
  return plan;
}

AudioTowerPlan ReadAudioTower(const Json& config, JsonFields& fields) {
  AudioTowerPlan plan;
  plan.hidden = static_cast<int>(fields.IntOr("hidden_size", 1024, kWidth));
  plan.num_layers = static_cast<int>(fields.IntOr("num_hidden_layers", 12, kLayers));
  plan.num_heads = static_cast<int>(fields.IntOr("num_attention_heads", 8, kHeads));
  plan.conv_kernel = static_cast<int>(fields.IntOr("conv_kernel_size", 5, {.min = 1, .max = 64}));
  plan.logit_cap =
      static_cast<float>(fields.NumberOr("attention_logit_cap", 50.0, {.min = 1e-3, .max = 1e6}));
  plan.residual_weight =
      static_cast<float>(fields.NumberOr("residual_weight", 0.5, {.min = -1e3, .max = 1e3}));
  plan.eps = ReadEps(fields);
  plan.output_dim = static_cast<int>(fields.IntOr("output_proj_dims", 1536, kWidth));
  plan.is_clipped = fields.BoolOr("use_clipped_linears", true);
  RequireText(fields, "hidden_act", "silu");
  plan.channels = {kNumMelBands, 32};
  if (const auto it = config.find("subsampling_conv_channels"); it != config.end()) {
    const bool is_pair = it->is_array() && it->size() == 2 && (*it)[0].is_number_integer() &&
                         (*it)[1].is_number_integer();
    // The reference takes the first for the number of mel bands.
    if (!is_pair || (*it)[0] != kNumMelBands || (*it)[1] < 1 || (*it)[1] > kWidth.max) {
      fields.Fail(fmt::format("subsampling_conv_channels must be [{}, n]", kNumMelBands));
    } else {
      plan.channels[1] = (*it)[1];
    }
  }
  const auto chunk = fields.IntOr("attention_chunk_size", 12, {.min = 1, .max = 4096});
  const auto left = fields.IntOr("attention_context_left", 13, {.min = 2, .max = 4097});
  plan.num_keys = static_cast<int>(left - 1);
  if (chunk != left - 1 || fields.IntOr("attention_context_right", 0, {}) != 0) {
    fields.Fail(
        "the audio tower's attention is not Gemma 4's: a chunk as long as the left context "
        "less one, and no right context");
  }
  if (plan.hidden % (2 * plan.num_heads) != 0) {
    fields.Fail(fmt::format("hidden_size {} does not divide into {} heads of even size",
                            plan.hidden, plan.num_heads));
  }
  return plan;
}

WaveEmbedderPlan ReadWaveEmbedder(JsonFields& fields) {
  WaveEmbedderPlan plan;
  plan.num_samples = static_cast<int>(fields.IntOr("audio_embed_dim", 640, kWidth));
  plan.eps = ReadEps(fields);
  if (fields.IntOr("output_proj_dims", plan.num_samples, kWidth) != plan.num_samples) {
    fields.Fail("output_proj_dims differs from audio_embed_dim");
  }
  return plan;
}

}  // namespace

Result<TowersPlan> MakeTowersPlan(const Json& config, std::string_view name) {
  TowersPlan plan;
  JsonFields top(config, std::string(name));
  const Json* text = top.OptionalObject("text_config");
  const Json* vision = top.OptionalObject("vision_config");
  const Json* audio = top.OptionalObject("audio_config");
  const auto architectures = top.OptionalStrings("architectures");
  RETURN_IF_ERROR(top.status());
  if (text == nullptr || (vision == nullptr && audio == nullptr)) return plan;
  const bool is_unified = architectures && !architectures->empty() &&
                          architectures->front().find("Unified") != std::string::npos;
  JsonFields text_fields(*text, fmt::format("{}: text_config", name));
  plan.text_hidden = static_cast<int>(text_fields.Int("hidden_size", {.min = 1, .max = 1 << 20}));
  RETURN_IF_ERROR(text_fields.status());
  if (vision != nullptr) {
    JsonFields fields(*vision, fmt::format("{}: vision_config", name));
    plan.grid = ReadGrid(fields);
    if (is_unified) {
      plan.cell_embedder = ReadCellEmbedder(fields);
    } else {
      plan.vision_tower = ReadVisionTower(fields);
    }
    RETURN_IF_ERROR(fields.status());
  }
  if (audio != nullptr) {
    JsonFields fields(*audio, fmt::format("{}: audio_config", name));
    if (is_unified) {
      plan.wave_embedder = ReadWaveEmbedder(fields);
    } else {
      plan.audio_tower = ReadAudioTower(*audio, fields);
    }
    RETURN_IF_ERROR(fields.status());
  }
  return plan;
}

UsableTowers FindUsableTowers(const Json& config, std::string_view name) {
  UsableTowers usable;
  using Names = std::vector<const char*>;
  for (const Names& left_out : {Names{}, Names{"audio_config"}, Names{"vision_config"},
                                Names{"vision_config", "audio_config"}}) {
    Json rest = config;
    for (const char* tower : left_out) {
      if (rest.is_object()) rest.erase(tower);
    }
    auto plan = MakeTowersPlan(rest, name);
    if (plan.ok()) {
      usable.plan = std::move(plan).value();
      break;
    }
    if (usable.problem.empty()) usable.problem = plan.error().message;
  }
  return usable;
}

}  // namespace lapidary
