#include "towers/cuda/cuda_audio_tower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/result.h"
#include "media/log_mel.h"
#include "towers/audio_tower.h"
#include "towers/cuda/tower_memory.h"

namespace lapidary::cuda {
namespace {

constexpr const char* kPurpose = "encoding audio";
constexpr float kNormEps = 1e-6f;  // of the norms that do not take the config's

// [rows, cols] -> [cols, rows]
std::vector<float> Transposed(const std::vector<float>& values, int64_t rows, int64_t cols) {
  CHECK_EQ(static_cast<int64_t>(values.size()), rows * cols);
  std::vector<float> transposed(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col)
      transposed[col * rows + row] = values[row * cols + col];
  }
  return transposed;
}

// [out, in, 9] -> [9, in, out]
std::vector<float> TapsFirst(const std::vector<float>& weight, int64_t in, int64_t out) {
  std::vector<float> taps(weight.size());
  for (int64_t to = 0; to < out; ++to) {
    for (int64_t from = 0; from < in; ++from) {
      for (int64_t tap = 0; tap < 9; ++tap) {
        taps[(tap * in + from) * out + to] = weight[(to * in + from) * 9 + tap];
      }
    }
  }
  return taps;
}

}  // namespace

Status AudioTowerSupport(const TowersPlan& plan) {
  const AudioTowerPlan& tower = *plan.audio_tower;
  RETURN_IF_ERROR(TowerRowsSupports(tower.hidden));
  RETURN_IF_ERROR(TowerRowsSupports(tower.output_dim));
  RETURN_IF_ERROR(BandAttentionSupports(tower.head_dim(), tower.num_keys));
  for (const int channels : tower.channels) {
    if (channels < 1 || kMaxConvChannels % channels != 0) {
      return MakeError("convolutions of {} channels, which is no divisor of {}", channels,
                       kMaxConvChannels);
    }
  }
  return {};
}

CudaAudioTower::CudaAudioTower(const TowersPlan& plan, const TowerTensors& tensors,
                               TowerDevice& device)
    : plan_(plan), tower_(*plan_.audio_tower), device_(device) {
  const std::string prefix = "audio_tower.";
  const std::string subsample = prefix + "subsample_conv_projection.";
  for (int idx = 0; idx < 2; ++idx) {
    const std::string name = fmt::format("{}layer{}.", subsample, idx);
    const int in = idx == 0 ? 1 : tower_.channels[0];
    const int out = tower_.channels[idx];
    convolutions_[idx] = {
        device.UploadVector(TapsFirst(tensors.Vector(name + "conv.weight"), in, out)),
        device.UploadVector(tensors.Vector(name + "norm.weight")), in, out};
  }
  input_proj_ = device.UploadMatrix(tensors.Matrix(subsample + "input_proj_linear.weight"));
  for (int layer_idx = 0; layer_idx < tower_.num_layers; ++layer_idx) {
    const std::string name = fmt::format("{}layers.{}.", prefix, layer_idx);
    const auto vector = [&](const std::string& what) {
      return device.UploadVector(tensors.Vector(name + what));
    };
    const auto clipped = [&](const std::string& what) { return tensors.Clipped(name + what); };
    const auto feed_forward = [&](const std::string& what) -> FeedForward {
      return {vector(what + "pre_layer_norm.weight"), vector(what + "post_layer_norm.weight"),
              device.UploadGroup({clipped(what + "ffw_layer_1")}),
              device.UploadLinear(clipped(what + "ffw_layer_2"))};
    };
    const cpu::AudioAttentionTables tables = cpu::MakeAudioAttentionTables(tower_, tensors, name);
    layers_.push_back(
        {.feed_forward1 = feed_forward("feed_forward1."),
         .feed_forward2 = feed_forward("feed_forward2."),
         .pre_attention_norm = vector("norm_pre_attn.weight"),
         .post_attention_norm = vector("norm_post_attn.weight"),
         .output_norm = vector("norm_out.weight"),
         .qkv = device.UploadGroup({clipped("self_attn.q_proj"), clipped("self_attn.k_proj"),
                                    clipped("self_attn.v_proj")}),
         .post = device.UploadLinear(clipped("self_attn.post")),
         .query_scale = device.UploadVector(tables.query_scale),
         .relative_keys = device.UploadVector(tables.relative_keys),
         .conv_input_norm = vector("lconv1d.pre_layer_norm.weight"),
         .conv_norm = vector("lconv1d.conv_norm.weight"),
         .conv_start = device.UploadGroup({clipped("lconv1d.linear_start")}),
         .conv_end = device.UploadLinear(clipped("lconv1d.linear_end")),
         .conv = device.UploadVector(
             Transposed(tensors.Vector(name + "lconv1d.depthwise_conv1d.weight"), tower_.hidden,
                        tower_.conv_kernel))});
  }
  output_proj_ = device.UploadMatrix(tensors.Matrix(prefix + "output_proj.weight"));
  output_bias_ = device.UploadVector(tensors.Vector(prefix + "output_proj.bias"));
  projection_ = device.UploadMatrix(tensors.Matrix("embed_audio.embedding_projection.weight"));

  const TowerBuffers buffers = PlanAudioTower(plan_);
  mel_ = StagedArray(buffers.staged, kPurpose);
  features_ = DeviceBuffer(buffers.features, kPurpose);
  hidden_ = DeviceBuffer(buffers.hidden, kPurpose);
  x_ = DeviceBuffer(buffers.x, kPurpose);
  wide_ = DeviceBuffer(buffers.wide, kPurpose);
  gated_ = DeviceBuffer(buffers.gated, kPurpose);
  added_ = DeviceBuffer(buffers.added, kPurpose);
  output_ = DeviceBuffer(buffers.output, kPurpose);
  out_ = DeviceBuffer(buffers.out, kPurpose);
}

int CudaAudioTower::Subsample(std::span<const float> mel) {
  SubsampleCall call;
  call.frames = static_cast<int>(mel.size()) / kNumMelBands;
  CHECK_LE(call.frames, kMaxMelFrames);
  call.bands = kNumMelBands;
  call.eps = tower_.eps;
  call.values = mel_.Add(mel);
  mel_.Send(device_.stream());
  for (int idx = 0; idx < 2; ++idx) {
    call.in_channels = convolutions_[idx].in_channels;
    call.out_channels = convolutions_[idx].out_channels;
    call.weights = convolutions_[idx].weight;
    call.norm = convolutions_[idx].norm;
    call.out = idx == 0 ? features_.As<float>() : nullptr;
    call.out_bf16 = idx == 0 ? nullptr : x_.As<bf16>();
    RunSubsample(device_.context(), call);
    call.frames = (call.frames + 1) / 2;
    call.bands = (call.bands + 1) / 2;
    call.values = call.out;
  }
  device_.Multiply(input_proj_, x_.As<bf16>(), call.frames, hidden_.As<float>());
  return call.frames;
}

UpdateRowsCall CudaAudioTower::Update(int rows) {
  UpdateRowsCall update = std::exchange(pending_, {});
  update.rows = rows;
  update.dim = tower_.hidden;
  update.eps = kNormEps;
  update.x_eps = kNormEps;
  update.hidden = hidden_.As<float>();
  update.x = x_.As<bf16>();
  return update;
}

void CudaAudioTower::RunFeedForward(const FeedForward& block, int rows) {
  UpdateRowsCall update = Update(rows);
  update.x_norm = block.pre_norm;
  device_.UpdateAndMultiply(update, block.up, wide_.As<bf16>());
  GateCall gate;
  gate.rows = rows;
  gate.width = block.up.part_rows;
  gate.gate = wide_.As<bf16>();
  gate.stride = gate.width;
  gate.gate_bounds = block.up.out[0];
  gate.out = gated_.As<bf16>();
  gate.out_bounds = block.down.in;
  RunGate(device_.context(), gate);
  device_.Multiply(block.down.weight, gated_.As<bf16>(), rows, added_.As<bf16>());
  pending_.addend = added_.As<bf16>();
  pending_.addend_bounds = block.down.out;
  pending_.addend_norm = block.post_norm;
  pending_.addend_scale = tower_.residual_weight;
}

void CudaAudioTower::RunAttention(const Layer& layer, int rows) {
  UpdateRowsCall update = Update(rows);
  update.x_norm = layer.pre_attention_norm;
  device_.UpdateAndMultiply(update, layer.qkv, wide_.As<bf16>());
  BandAttentionCall call;
  call.rows = rows;
  call.num_heads = tower_.num_heads;
  call.head_dim = tower_.head_dim();
  call.num_keys = tower_.num_keys;
  call.cap = tower_.logit_cap;
  call.key_scale = static_cast<float>(std::log(1.0 + std::numbers::e) / std::numbers::ln2);
  for (int part = 0; part < 3; ++part) {
    call.projected[part] = layer.qkv.Part(wide_.As<bf16>(), part, rows);
    call.bounds[part] = layer.qkv.out[part];
  }
  call.stride = layer.qkv.stride();
  call.query_scale = layer.query_scale;
  call.relative_keys = layer.relative_keys;
  call.out = x_.As<bf16>();
  call.out_bounds = layer.post.in;
  RunBandAttention(device_.context(), call);
  device_.Multiply(layer.post.weight, x_.As<bf16>(), rows, added_.As<bf16>());
  pending_.addend = added_.As<bf16>();
  pending_.addend_bounds = layer.post.out;
  pending_.addend_norm = layer.post_attention_norm;
}

void CudaAudioTower::RunConvolution(const Layer& layer, int rows) {
  UpdateRowsCall update = Update(rows);
  update.x_norm = layer.conv_input_norm;
  update.x_eps = tower_.eps;
  device_.UpdateAndMultiply(update, layer.conv_start, wide_.As<bf16>());
  RunDepthwise(device_.context(), {.rows = rows,
                                   .dim = tower_.hidden,
                                   .kernel = tower_.conv_kernel,
                                   .eps = tower_.eps,
                                   .started = wide_.As<bf16>(),
                                   .bounds = layer.conv_start.out[0],
                                   .taps = layer.conv,
                                   .norm = layer.conv_norm,
                                   .x = x_.As<bf16>(),
                                   .x_bounds = layer.conv_end.in});
  device_.Multiply(layer.conv_end.weight, x_.As<bf16>(), rows, added_.As<bf16>());
  pending_.addend = added_.As<bf16>();
  pending_.addend_bounds = layer.conv_end.out;
}

void CudaAudioTower::Encode(std::span<const float> mel, float* out) {
  const int rows = Subsample(mel);
  pending_ = {};
  for (const Layer& layer : layers_) {
    RunFeedForward(layer.feed_forward1, rows);
    RunAttention(layer, rows);
    RunConvolution(layer, rows);
    RunFeedForward(layer.feed_forward2, rows);
    pending_.hidden_norm = layer.output_norm;
  }
  UpdateRowsCall last = Update(rows);
  last.norms_x = false;
  RunUpdateRows(device_.context(), last);
  device_.Multiply(output_proj_, x_.As<bf16>(), rows, output_.As<float>());

  UpdateRowsCall output;
  output.rows = rows;
  output.dim = tower_.output_dim;
  output.hidden = output_.As<float>();
  output.keeps_hidden = false;
  output.bias = output_bias_;
  output.x_eps = tower_.eps;
  output.x = x_.As<bf16>();
  RunUpdateRows(device_.context(), output);
  device_.Multiply(projection_, x_.As<bf16>(), rows, out_.As<float>());
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(out, out_.As<void>(),
                                      int64_t{rows} * plan_.text_hidden * sizeof(float),
                                      cudaMemcpyDeviceToHost, device_.stream()));
}

Status WaveEmbedderSupport(const TowersPlan& plan) {
  return TowerRowsSupports(plan.wave_embedder->num_samples);
}

CudaWaveEmbedder::CudaWaveEmbedder(const TowersPlan& plan, const TowerTensors& tensors,
                                   TowerDevice& device)
    : plan_(plan), embedder_(*plan_.wave_embedder), device_(device) {
  projection_ = device.UploadMatrix(tensors.Matrix("embed_audio.embedding_projection.weight"));
  const TowerBuffers buffers = PlanWaveEmbedder(plan_);
  samples_ = StagedArray(buffers.staged, kPurpose);
  x_ = DeviceBuffer(buffers.x, kPurpose);
  out_ = DeviceBuffer(buffers.out, kPurpose);
}

void CudaWaveEmbedder::Encode(std::span<const float> samples, float* out) {
  const int64_t per_token = embedder_.num_samples;
  const int64_t tokens = (static_cast<int64_t>(samples.size()) + per_token - 1) / per_token;
  CHECK_LE(tokens, kMaxWaveTokens);
  const StagedArray::Place<float> frames = samples_.Reserve<float>(tokens * per_token);
  std::fill(std::copy(samples.begin(), samples.end(), frames.host),
            frames.host + tokens * per_token, 0.0f);
  UpdateRowsCall norm;
  norm.rows = static_cast<int>(tokens);
  norm.dim = embedder_.num_samples;
  norm.hidden = const_cast<float*>(frames.device);
  norm.keeps_hidden = false;
  norm.x_eps = embedder_.eps;
  norm.x = x_.As<bf16>();
  samples_.Send(device_.stream());
  RunUpdateRows(device_.context(), norm);
  device_.Multiply(projection_, x_.As<bf16>(), norm.rows, out_.As<float>());
  LAPIDARY_CUDA_CHECK(cudaMemcpyAsync(out, out_.As<void>(),
                                      tokens * plan_.text_hidden * int64_t{sizeof(float)},
                                      cudaMemcpyDeviceToHost, device_.stream()));
}

}  // namespace lapidary::cuda
