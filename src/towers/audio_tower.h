// The audio encoder on the CPU, from samples to soft tokens: the reference that other devices are
// compared with.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "towers/tower_plan.h"
#include "towers/tower_tensors.h"

namespace lapidary::cpu {

// What a layer's attention multiplies with beside its projections.
struct AudioAttentionTables {
  std::vector<float> query_scale;    // [head_dim]
  std::vector<float> relative_keys;  // [num_keys, hidden]: by distance
};
// `prefix`: of the layer's tensors.
AudioAttentionTables MakeAudioAttentionTables(const AudioTowerPlan& plan,
                                              const TowerTensors& tensors,
                                              const std::string& prefix);

// E2B, E4B: two convolutions that keep every fourth frame, then conformer layers.
//
//   layer: x = ff1(x);  x += norm(attend(norm(x)));  x += lconv(x);  x = ff2(x);  x = norm(x)
//   soft = W_proj rms(W_out x + b)
//
// A query sees its own frame and the num_keys - 1 before it; scores have a part that depends on
// the distance alone.
class AudioTower {
 public:
  AudioTower(const TowersPlan& plan, const TowerTensors& tensors);

  // Soft tokens that so many mel frames become.
  static int NumTokens(int num_frames) { return ((num_frames + 1) / 2 + 1) / 2; }

  // mel [num_frames, kNumMelBands] -> [NumTokens, text hidden]
  std::vector<float> Encode(std::span<const float> mel, ThreadPool& threads) const;

 private:
  struct FeedForward {
    std::vector<float> pre_norm, post_norm;
    ClippedMatrix up, down;
  };
  struct Layer {
    FeedForward feed_forward1, feed_forward2;
    std::vector<float> pre_attention_norm, post_attention_norm, output_norm;
    ClippedMatrix q_proj, k_proj, v_proj, post;
    AudioAttentionTables tables;
    std::vector<float> conv_input_norm, conv_norm;
    ClippedMatrix conv_start, conv_end;
    std::vector<float> conv;  // [hidden, conv_kernel]
  };
  struct Convolution {
    std::vector<float> weight;  // [out, in, 3, 3]
    std::vector<float> norm;    // [out]
    int in_channels = 0;
    int out_channels = 0;
  };
  // [frames, bands, channels]
  struct Features {
    int frames = 0;
    int bands = 0;
    int channels = 0;
    std::vector<float> values;
  };

  Features Subsample(const Features& in, const Convolution& convolution, ThreadPool& threads) const;
  void AddFeedForward(const FeedForward& block, std::vector<float>& x, ThreadPool& threads) const;
  void AddAttention(const Layer& layer, std::vector<float>& x, ThreadPool& threads) const;
  void AddConvolution(const Layer& layer, std::vector<float>& x, ThreadPool& threads) const;

  const AudioTowerPlan plan_;
  Convolution convolutions_[2];
  MatrixRef input_proj_;
  std::vector<Layer> layers_;
  MatrixRef output_proj_;
  std::vector<float> output_bias_;
  MatrixRef projection_;
};

// 12B: so many samples become a soft token directly: soft = W_proj rms(samples).
class WaveEmbedder {
 public:
  WaveEmbedder(const TowersPlan& plan, const TowerTensors& tensors);

  // The last token's samples are filled up with zeros.
  static int NumTokens(const WaveEmbedderPlan& plan, int64_t num_samples) {
    return static_cast<int>((num_samples + plan.num_samples - 1) / plan.num_samples);
  }
  std::vector<float> Encode(std::span<const float> samples, ThreadPool& threads) const;

 private:
  const WaveEmbedderPlan plan_;
  MatrixRef projection_;
};

}  // namespace lapidary::cpu
