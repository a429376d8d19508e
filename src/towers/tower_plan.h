// The vision and audio encoders of a checkpoint, by its config.json: which it has and their shapes.
// The decoder's own facts are ModelPlan's (model/plan.h).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "base/json_fields.h"
#include "base/result.h"
#include "media/image_size.h"

namespace lapidary {

// A transformer over patches of 16 x 16 pixels, pooled to soft tokens (all sizes but 12B).
struct VisionTowerPlan {
  int hidden = 0;
  int num_layers = 0;
  int num_heads = 0;
  int head_dim = 0;
  int mlp_width = 0;
  int num_positions = 0;  // per axis
  double rope_theta = 100.0;
  float eps = 1e-6f;
  bool is_clipped = false;
  bool is_standardized = false;
};

// No tower: a cell of 48 x 48 pixels becomes a soft token directly (12B).
struct CellEmbedderPlan {
  int hidden = 0;
  int num_positions = 0;  // per axis
  float eps = 1e-6f;      // of the norm before the projection
};

// A conformer over mel frames, four to a soft token (E2B, E4B).
struct AudioTowerPlan {
  int hidden = 0;
  int num_layers = 0;
  int num_heads = 0;
  std::array<int, 2> channels{};  // of the two subsampling convolutions
  int conv_kernel = 0;
  int num_keys = 0;  // a query sees, its own included
  float logit_cap = 50.0f;
  float residual_weight = 0.5f;
  float eps = 1e-6f;
  int output_dim = 0;
  bool is_clipped = false;

  int head_dim() const { return hidden / num_heads; }
};

// No tower: so many samples become a soft token directly (12B).
struct WaveEmbedderPlan {
  int num_samples = 0;
  float eps = 1e-6f;
};

struct TowersPlan {
  int text_hidden = 0;
  PatchGrid grid;
  std::optional<VisionTowerPlan> vision_tower;
  std::optional<CellEmbedderPlan> cell_embedder;
  std::optional<AudioTowerPlan> audio_tower;
  std::optional<WaveEmbedderPlan> wave_embedder;

  bool has_vision() const { return vision_tower || cell_embedder; }
  bool has_audio() const { return audio_tower || wave_embedder; }
};

// `name` is used in messages. A config without towers gives a plan without any.
Result<TowersPlan> MakeTowersPlan(const Json& config, std::string_view name);

// The towers that can be run: one whose shape is not Gemma 4's is left out of `plan`, and `problem`
// says why. A model writes text without any.
struct UsableTowers {
  TowersPlan plan;
  std::string problem = {};  // empty: none is left out
};
UsableTowers FindUsableTowers(const Json& config, std::string_view name);

}  // namespace lapidary
