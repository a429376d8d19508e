#include "media/log_mel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <numbers>

namespace lapidary {
namespace {

constexpr int kHop = 160;
constexpr int kFrame = 320;
constexpr int kFrameReach = kFrame + 1;  // the reference takes one sample more and drops it
constexpr int kLeftPadding = kFrame / 2;
constexpr int kFftBits = 9;
constexpr int kFft = 1 << kFftBits;
constexpr int kNumBins = kFft / 2 + 1;
constexpr double kBinHertz = 16000.0 / kFft;
constexpr double kMaxHertz = 8000.0;
constexpr double kMelFloor = 1e-3;

double HertzToMel(double hertz) { return 2595.0 * std::log10(1.0 + hertz / 700.0); }
double MelToHertz(double mel) { return 700.0 * (std::pow(10.0, mel / 2595.0) - 1.0); }

// A triangle over the bins [first, first + weights.size()); empty where it falls between two.
struct MelBand {
  int first = 0;
  std::vector<double> weights;
};

struct Tables {
  std::array<double, kFrame> window;  // periodic Hann
  std::array<std::complex<double>, kFft / 2> roots;
  std::array<int, kFft> reversed;  // bits
  std::array<MelBand, kNumMelBands> bands;
};

MelBand MakeBand(double left, double centre, double right) {
  MelBand band;
  for (int bin = 0; bin < kNumBins; ++bin) {
    const double hertz = bin * kBinHertz;
    const double weight =
        std::min((hertz - left) / (centre - left), (right - hertz) / (right - centre));
    if (weight <= 0.0) continue;
    if (band.weights.empty()) band.first = bin;
    band.weights.push_back(weight);
  }
  return band;
}

const Tables& GetTables() {
  static const Tables tables = [] {
    Tables made;
    for (int idx = 0; idx < kFrame; ++idx) {
      made.window[idx] = 0.5 - 0.5 * std::cos(2.0 * std::numbers::pi * idx / kFrame);
    }
    for (int idx = 0; idx < kFft / 2; ++idx) {
      made.roots[idx] = std::polar(1.0, -2.0 * std::numbers::pi * idx / kFft);
    }
    for (int idx = 0; idx < kFft; ++idx) {
      int reversed = 0;
      for (int bit = 0; bit < kFftBits; ++bit) reversed = reversed << 1 | (idx >> bit & 1);
      made.reversed[idx] = reversed;
    }
    const double mel_step = HertzToMel(kMaxHertz) / (kNumMelBands + 1);
    for (int band = 0; band < kNumMelBands; ++band) {
      made.bands[band] = MakeBand(MelToHertz(band * mel_step), MelToHertz((band + 1) * mel_step),
                                  MelToHertz((band + 2) * mel_step));
    }
    return made;
  }();
  return tables;
}

// In place, decimation in time; the input is in bit-reversed order.
void Fft(const Tables& tables, std::array<std::complex<double>, kFft>& values) {
  for (int half = 1; half < kFft; half *= 2) {
    const int root_step = kFft / (2 * half);
    for (int block = 0; block < kFft; block += 2 * half) {
      for (int idx = 0; idx < half; ++idx) {
        const std::complex<double> upper = values[block + idx];
        const std::complex<double> lower =
            values[block + idx + half] * tables.roots[idx * root_step];
        values[block + idx] = upper + lower;
        values[block + idx + half] = upper - lower;
      }
    }
  }
}

// samples [kFrame] -> bands [kNumMelBands]
void LogMelFrame(const Tables& tables, const double* samples, float* bands) {
  std::array<std::complex<double>, kFft> values = {};
  for (int idx = 0; idx < kFrame; ++idx) {
    values[tables.reversed[idx]] = samples[idx] * tables.window[idx];
  }
  Fft(tables, values);
  std::array<double, kNumBins> magnitudes;
  for (int bin = 0; bin < kNumBins; ++bin) magnitudes[bin] = std::abs(values[bin]);
  for (int band_idx = 0; band_idx < kNumMelBands; ++band_idx) {
    const MelBand& band = tables.bands[band_idx];
    double sum = 0.0;
    for (size_t idx = 0; idx < band.weights.size(); ++idx) {
      sum += magnitudes[band.first + idx] * band.weights[idx];
    }
    bands[band_idx] = static_cast<float>(std::log(sum + kMelFloor));
  }
}

}  // namespace

int NumMelFrames(int64_t num_samples) {
  const int64_t padded = std::min(num_samples, kMaxMelSamples) + kLeftPadding;
  return padded < kFrameReach ? 0 : static_cast<int>((padded - kFrameReach) / kHop + 1);
}

std::vector<float> LogMel(std::span<const float> samples) {
  const Tables& tables = GetTables();
  const int num_frames = NumMelFrames(static_cast<int64_t>(samples.size()));
  std::vector<float> mel(size_t{kNumMelBands} * num_frames);
  std::array<double, kFrame> frame;
  for (int frame_idx = 0; frame_idx < num_frames; ++frame_idx) {
    const int64_t begin = int64_t{kHop} * frame_idx - kLeftPadding;
    for (int idx = 0; idx < kFrame; ++idx)
      frame[idx] = begin + idx < 0 ? 0.0 : samples[begin + idx];
    LogMelFrame(tables, frame.data(), mel.data() + int64_t{kNumMelBands} * frame_idx);
  }
  return mel;
}

}  // namespace lapidary
