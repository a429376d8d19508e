#include "towers/audio_tower.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "media/log_mel.h"
#include "ops/cpu/elementwise.h"
#include "towers/tower_ops.h"

namespace lapidary::cpu {
namespace {

constexpr float kNormEps = 1e-6f;  // of the norms that do not take the config's
constexpr double kMaxTimescale = 10000.0;

float Softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// relative_k_proj of [sin(d t_0) .. | cos(d t_0) ..] for every distance d.
std::vector<float> MakeRelativeKeys(const AudioTowerPlan& plan, const MatrixRef& projection) {
  const int half = plan.hidden / 2;
  const auto step = static_cast<float>(std::log(kMaxTimescale) / std::max(half - 1, 1));
  std::vector<float> encoded(int64_t{plan.num_keys} * plan.hidden);
  for (int distance = 0; distance < plan.num_keys; ++distance) {
    float* row = encoded.data() + int64_t{distance} * plan.hidden;
    for (int idx = 0; idx < half; ++idx) {
      const float angle = static_cast<float>(distance) * std::exp(static_cast<float>(idx) * -step);
      row[idx] = std::sin(angle);
      row[half + idx] = std::cos(angle);
    }
  }
  ThreadPool one_thread(1);
  return PlainLinear(encoded, plan.num_keys, projection, one_thread);
}

}  // namespace

AudioAttentionTables MakeAudioAttentionTables(const AudioTowerPlan& plan,
                                              const TowerTensors& tensors,
                                              const std::string& prefix) {
  AudioAttentionTables tables;
  tables.query_scale = tensors.Vector(prefix + "self_attn.per_dim_scale");
  const double scale = 1.0 / std::sqrt(static_cast<double>(plan.head_dim())) / std::numbers::ln2;
  for (float& value : tables.query_scale) value = static_cast<float>(scale) * Softplus(value);
  tables.relative_keys =
      MakeRelativeKeys(plan, tensors.Matrix(prefix + "self_attn.relative_k_proj.weight"));
  return tables;
}

AudioTower::AudioTower(const TowersPlan& plan, const TowerTensors& tensors)
    : plan_(*plan.audio_tower) {
  const std::string prefix = "audio_tower.";
  const std::string subsample = prefix + "subsample_conv_projection.";
  for (int idx = 0; idx < 2; ++idx) {
    const std::string name = fmt::format("{}layer{}.", subsample, idx);
    convolutions_[idx] = {tensors.Vector(name + "conv.weight"),
                          tensors.Vector(name + "norm.weight"), idx == 0 ? 1 : plan_.channels[0],
                          plan_.channels[idx]};
  }
  input_proj_ = tensors.Matrix(subsample + "input_proj_linear.weight");
  const auto feed_forward = [&](const std::string& name) -> FeedForward {
    return {tensors.Vector(name + "pre_layer_norm.weight"),
            tensors.Vector(name + "post_layer_norm.weight"), tensors.Clipped(name + "ffw_layer_1"),
            tensors.Clipped(name + "ffw_layer_2")};
  };
  for (int layer_idx = 0; layer_idx < plan_.num_layers; ++layer_idx) {
    const std::string name = fmt::format("{}layers.{}.", prefix, layer_idx);
    Layer& layer = layers_.emplace_back();
    layer.feed_forward1 = feed_forward(name + "feed_forward1.");
    layer.feed_forward2 = feed_forward(name + "feed_forward2.");
    layer.pre_attention_norm = tensors.Vector(name + "norm_pre_attn.weight");
    layer.post_attention_norm = tensors.Vector(name + "norm_post_attn.weight");
    layer.output_norm = tensors.Vector(name + "norm_out.weight");
    layer.q_proj = tensors.Clipped(name + "self_attn.q_proj");
    layer.k_proj = tensors.Clipped(name + "self_attn.k_proj");
    layer.v_proj = tensors.Clipped(name + "self_attn.v_proj");
    layer.post = tensors.Clipped(name + "self_attn.post");
    layer.tables = MakeAudioAttentionTables(plan_, tensors, name);
    layer.conv_input_norm = tensors.Vector(name + "lconv1d.pre_layer_norm.weight");
    layer.conv_norm = tensors.Vector(name + "lconv1d.conv_norm.weight");
    layer.conv_start = tensors.Clipped(name + "lconv1d.linear_start");
    layer.conv_end = tensors.Clipped(name + "lconv1d.linear_end");
    layer.conv = tensors.Vector(name + "lconv1d.depthwise_conv1d.weight");
  }
  output_proj_ = tensors.Matrix(prefix + "output_proj.weight");
  output_bias_ = tensors.Vector(prefix + "output_proj.bias");
  projection_ = tensors.Matrix("embed_audio.embedding_projection.weight");
}

// 3 x 3, every other frame and band, zeros around; norm over channels, ReLU.
AudioTower::Features AudioTower::Subsample(const Features& in, const Convolution& convolution,
                                           ThreadPool& threads) const {
  Features out{(in.frames + 1) / 2, (in.bands + 1) / 2, convolution.out_channels, {}};
  out.values.resize(int64_t{out.frames} * out.bands * out.channels);
  threads.ParallelFor(int64_t{out.frames} * out.bands, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t place = begin; place < end; ++place) {
      const int first_frame = static_cast<int>(place / out.bands) * 2 - 1;
      const int first_band = static_cast<int>(place % out.bands) * 2 - 1;
      float* target = out.values.data() + place * out.channels;
      for (int tap = 0; tap < 9; ++tap) {
        const int frame = first_frame + tap / 3;
        const int band = first_band + tap % 3;
        if (frame < 0 || frame >= in.frames || band < 0 || band >= in.bands) continue;
        const float* source = in.values.data() + (int64_t{frame} * in.bands + band) * in.channels;
        for (int channel = 0; channel < out.channels; ++channel) {
          const float* weights =
              convolution.weight.data() + int64_t{channel} * in.channels * 9 + tap;
          float sum = 0.0f;
          for (int idx = 0; idx < in.channels; ++idx)
            sum += weights[int64_t{idx} * 9] * source[idx];
          target[channel] += sum;
        }
      }
      LayerNorm(target, convolution.norm.data(), /*bias=*/nullptr, plan_.eps, out.channels);
      for (int channel = 0; channel < out.channels; ++channel) {
        target[channel] = std::max(target[channel], 0.0f);
      }
    }
  });
  return out;
}

void AudioTower::AddFeedForward(const FeedForward& block, std::vector<float>& x,
                                ThreadPool& threads) const {
  const int64_t rows = static_cast<int64_t>(x.size()) / plan_.hidden;
  auto inner =
      ClippedLinear(NormRows(x, block.pre_norm, kNormEps, plan_.hidden), rows, block.up, threads);
  Silu(inner);
  const auto outer = NormRows(ClippedLinear(inner, rows, block.down, threads), block.post_norm,
                              kNormEps, plan_.hidden);
  for (size_t idx = 0; idx < x.size(); ++idx) x[idx] += outer[idx] * plan_.residual_weight;
}

void AudioTower::AddAttention(const Layer& layer, std::vector<float>& x,
                              ThreadPool& threads) const {
  const int64_t dim = plan_.hidden;
  const int64_t rows = static_cast<int64_t>(x.size()) / dim;
  const int head_dim = plan_.head_dim();
  const auto normed = NormRows(x, layer.pre_attention_norm, kNormEps, dim);
  auto queries = ClippedLinear(normed, rows, layer.q_proj, threads);
  auto keys = ClippedLinear(normed, rows, layer.k_proj, threads);
  const auto values = ClippedLinear(normed, rows, layer.v_proj, threads);
  for (size_t idx = 0; idx < queries.size(); ++idx) {
    queries[idx] *= layer.tables.query_scale[idx % head_dim];
  }
  const auto key_scale = static_cast<float>(std::log(1.0 + std::numbers::e) / std::numbers::ln2);
  Scale(keys.data(), key_scale, static_cast<int64_t>(keys.size()), keys.data());

  std::vector<float> attended(x.size());
  threads.ParallelFor(rows * plan_.num_heads, 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> scores(plan_.num_keys);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / plan_.num_heads;
      const int64_t head_at = task % plan_.num_heads * head_dim;
      const float* query = queries.data() + row * dim + head_at;
      const int num_keys = static_cast<int>(std::min<int64_t>(plan_.num_keys, row + 1));
      for (int distance = 0; distance < num_keys; ++distance) {
        const float* key = keys.data() + (row - distance) * dim + head_at;
        const float* relative = layer.tables.relative_keys.data() + distance * dim + head_at;
        float score = 0.0f;
        for (int idx = 0; idx < head_dim; ++idx) score += query[idx] * (key[idx] + relative[idx]);
        scores[distance] = score;
      }
      Softcap(scores.data(), plan_.logit_cap, num_keys);
      const float sum = ExpMinusMax(scores.data(), num_keys);
      float* out = attended.data() + row * dim + head_at;
      for (int distance = 0; distance < num_keys; ++distance) {
        MulAddTo(values.data() + (row - distance) * dim + head_at, scores[distance] / sum, head_dim,
                 out);
      }
    }
  });
  const auto added = NormRows(ClippedLinear(attended, rows, layer.post, threads),
                              layer.post_attention_norm, kNormEps, dim);
  for (size_t idx = 0; idx < x.size(); ++idx) x[idx] += added[idx];
}

void AudioTower::AddConvolution(const Layer& layer, std::vector<float>& x,
                                ThreadPool& threads) const {
  const int64_t dim = plan_.hidden;
  const int64_t rows = static_cast<int64_t>(x.size()) / dim;
  const auto started = ClippedLinear(NormRows(x, layer.conv_input_norm, plan_.eps, dim), rows,
                                     layer.conv_start, threads);
  std::vector<float> gated(x.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t idx = 0; idx < dim; ++idx) {
      const float* pair = started.data() + 2 * row * dim + idx;
      gated[row * dim + idx] = pair[0] / (1.0f + std::exp(-pair[dim]));
    }
  }
  // Each channel by itself; the last tap is the row's own.
  std::vector<float> mixed(x.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int tap = 0; tap < plan_.conv_kernel; ++tap) {
      const int64_t from = row - (plan_.conv_kernel - 1 - tap);
      if (from < 0) continue;
      for (int64_t idx = 0; idx < dim; ++idx) {
        mixed[row * dim + idx] +=
            layer.conv[idx * plan_.conv_kernel + tap] * gated[from * dim + idx];
      }
    }
  }
  mixed = NormRows(mixed, layer.conv_norm, plan_.eps, dim);
  Silu(mixed);
  const auto added = ClippedLinear(mixed, rows, layer.conv_end, threads);
  for (size_t idx = 0; idx < x.size(); ++idx) x[idx] += added[idx];
}

std::vector<float> AudioTower::Encode(std::span<const float> mel, ThreadPool& threads) const {
  Features features{
      static_cast<int>(mel.size()) / kNumMelBands, kNumMelBands, 1, {mel.begin(), mel.end()}};
  for (const Convolution& convolution : convolutions_) {
    features = Subsample(features, convolution, threads);
  }
  std::vector<float> x = PlainLinear(features.values, features.frames, input_proj_, threads);
  for (const Layer& layer : layers_) {
    AddFeedForward(layer.feed_forward1, x, threads);
    AddAttention(layer, x, threads);
    AddConvolution(layer, x, threads);
    AddFeedForward(layer.feed_forward2, x, threads);
    x = NormRows(x, layer.output_norm, kNormEps, plan_.hidden);
  }
  std::vector<float> output = PlainLinear(x, features.frames, output_proj_, threads);
  for (size_t idx = 0; idx < output.size(); ++idx) {
    output[idx] += output_bias_[idx % output_bias_.size()];
  }
  return PlainLinear(NormRows(output, {}, plan_.eps, plan_.output_dim), features.frames,
                     projection_, threads);
}

WaveEmbedder::WaveEmbedder(const TowersPlan& plan, const TowerTensors& tensors)
    : plan_(*plan.wave_embedder),
      projection_(tensors.Matrix("embed_audio.embedding_projection.weight")) {}

std::vector<float> WaveEmbedder::Encode(std::span<const float> samples, ThreadPool& threads) const {
  const int num_tokens = NumTokens(plan_, static_cast<int64_t>(samples.size()));
  std::vector<float> frames(int64_t{num_tokens} * plan_.num_samples);
  std::copy(samples.begin(), samples.end(), frames.begin());
  return PlainLinear(NormRows(frames, {}, plan_.eps, plan_.num_samples), num_tokens, projection_,
                     threads);
}

}  // namespace lapidary::cpu
