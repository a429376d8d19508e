// The audio encoder on a GPU: what cpu::AudioTower and cpu::WaveEmbedder compute
// (towers/audio_tower.h), in bf16 with sums and the residual stream in f32.
#pragma once

#include <span>
#include <vector>

#include "ops/cuda/towers/conformer.h"
#include "towers/cuda/tower_device.h"
#include "towers/tower_plan.h"

namespace lapidary::cuda {

Status AudioTowerSupport(const TowersPlan& plan);

class CudaAudioTower {
 public:
  // `device` must outlive this.
  CudaAudioTower(const TowersPlan& plan, const TowerTensors& tensors, TowerDevice& device);

  // mel [frames, kNumMelBands]. Queues the work: rows go to `out` [tokens, text hidden],
  // page-locked.
  void Encode(std::span<const float> mel, float* out);

 private:
  struct FeedForward {
    const float* pre_norm;
    const float* post_norm;
    DeviceLinearGroup up;
    DeviceLinear down;
  };
  struct Layer {
    FeedForward feed_forward1, feed_forward2;
    const float* pre_attention_norm;
    const float* post_attention_norm;
    const float* output_norm;
    DeviceLinearGroup qkv;
    DeviceLinear post;
    const float* query_scale;    // [head_dim]
    const float* relative_keys;  // [num_keys, hidden]
    const float* conv_input_norm;
    const float* conv_norm;
    DeviceLinearGroup conv_start;
    DeviceLinear conv_end;
    const float* conv;  // [conv_kernel, hidden]
  };
  struct Convolution {
    const float* weight;  // [9, in, out]
    const float* norm;
    int in_channels;
    int out_channels;
  };

  // Two convolutions and a product: mel to the residual stream. Returns its rows.
  int Subsample(std::span<const float> mel);
  // What a block adds is pending in added_, with how it is added, until the next update.
  UpdateRowsCall Update(int rows);
  void RunFeedForward(const FeedForward& block, int rows);
  void RunAttention(const Layer& layer, int rows);
  void RunConvolution(const Layer& layer, int rows);

  const TowersPlan plan_;
  const AudioTowerPlan& tower_;
  TowerDevice& device_;

  Convolution convolutions_[2];
  DeviceMatrix input_proj_;
  std::vector<Layer> layers_;
  DeviceMatrix output_proj_;
  const float* output_bias_;
  DeviceMatrix projection_;

  StagedArray mel_;
  DeviceBuffer features_;  // f32, of the first convolution
  DeviceBuffer hidden_;    // f32 [tokens, hidden]
  DeviceBuffer x_;         // bf16: a product's input
  DeviceBuffer wide_;      // bf16: a product's result
  DeviceBuffer gated_;     // bf16 [tokens, feed-forward width]
  DeviceBuffer added_;     // bf16 [tokens, hidden]
  DeviceBuffer output_;    // f32 [tokens, output_dim]
  DeviceBuffer out_;       // f32 [tokens, text hidden]

  // How added_ is added; `addend` null: nothing is pending.
  UpdateRowsCall pending_;
};

Status WaveEmbedderSupport(const TowersPlan& plan);

class CudaWaveEmbedder {
 public:
  CudaWaveEmbedder(const TowersPlan& plan, const TowerTensors& tensors, TowerDevice& device);

  // `samples` of at most kMaxWaveTokens tokens; the last token's are filled up with zeros.
  void Encode(std::span<const float> samples, float* out);

 private:
  const TowersPlan plan_;
  const WaveEmbedderPlan& embedder_;
  TowerDevice& device_;
  DeviceMatrix projection_;
  StagedArray samples_;
  DeviceBuffer x_;
  DeviceBuffer out_;
};

}  // namespace lapidary::cuda
