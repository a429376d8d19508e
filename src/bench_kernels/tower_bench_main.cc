// Times a model's towers on the GPU: images that lie on the device to soft tokens, one and
// several at once, and ten seconds of sound.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "base/read_file.h"
#include "media/log_mel.h"
#include "synth/synth.h"
#include "towers/cuda/cuda_audio_tower.h"
#include "towers/cuda/cuda_vision_tower.h"
#include "towers/tower_specs.h"

namespace lapidary::cuda {
namespace {

// Median ms of a run, of several that are queued one behind the other.
template <typename Queue>
double MedianMs(cudaStream_t stream, const Queue& queue) {
  constexpr int kRuns = 15;
  std::vector<cudaEvent_t> events(kRuns + 1);
  for (cudaEvent_t& event : events) LAPIDARY_CUDA_CHECK(cudaEventCreate(&event));
  for (int run = 0; run < 3; ++run) queue();
  for (int run = 0; run <= kRuns; ++run) {
    LAPIDARY_CUDA_CHECK(cudaEventRecord(events[run], stream));
    if (run < kRuns) queue();
  }
  LAPIDARY_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<float> times(kRuns);
  for (int run = 0; run < kRuns; ++run) {
    LAPIDARY_CUDA_CHECK(cudaEventElapsedTime(&times[run], events[run], events[run + 1]));
  }
  for (const cudaEvent_t event : events) cudaEventDestroy(event);
  std::sort(times.begin(), times.end());
  return times[kRuns / 2];
}

ImagePatches Picture(int height, int width, int patch) {
  ImagePatches image;
  image.grid_height = height;
  image.grid_width = width;
  image.patch = patch;
  image.values.resize(int64_t{image.num_patches()} * image.patch_values());
  for (size_t idx = 0; idx < image.values.size(); ++idx) {
    image.values[idx] = static_cast<float>(idx * 37 % 256) / 255.0f;
  }
  return image;
}

// Operations of the products and of attention, in 1e12.
double VisionTflop(const TowersPlan& plan, double patches, double num_pictures) {
  const VisionTowerPlan& tower = *plan.vision_tower;
  const double heads = static_cast<double>(tower.num_heads) * tower.head_dim;
  const double products = 4.0 * tower.hidden * heads + 3.0 * tower.hidden * tower.mlp_width;
  const double attention = 2.0 * heads * patches / num_pictures;
  return 2e-12 * patches * tower.num_layers * (products + attention);
}

void TimeVision(const TowersPlan& plan, const TowerTensors& tensors, TowerDevice& device,
                float* out) {
  CudaVisionTower tower(plan, tensors, device);
  // Runs of as many images as fit: sixteen are four runs of four.
  for (const auto& [height, width, count, runs] : {std::tuple{24, 24, 1, 1},
                                                   {42, 57, 1, 1},
                                                   {42, 57, 4, 1},
                                                   {42, 57, 4, 4},
                                                   {84, 114, 1, 1}}) {
    const ImagePatches picture = Picture(height, width, plan.grid.patch);
    const std::vector<const ImagePatches*> images(count, &picture);
    const CudaVisionTower::Batch batch = tower.Stage(images);
    const double ms = MedianMs(device.stream(), [&, runs = runs] {
      for (int run = 0; run < runs; ++run) tower.Run(batch, out);
    });
    const double tflop = runs * VisionTflop(plan, batch.patches, count);
    fmt::print("{} pictures of {} tokens: {:.3f} ms, {:.0f} TFLOP/s\n", count * runs,
               batch.cells / count, ms, 1e3 * tflop / ms);
  }
}

void TimeCells(const TowersPlan& plan, const TowerTensors& tensors, TowerDevice& device,
               float* out) {
  CudaCellEmbedder embedder(plan, tensors, device);
  for (const auto& [height, width] : {std::pair{14, 19}, {28, 38}}) {
    const ImagePatches picture = Picture(height, width, plan.grid.cell());
    const ImagePatches* const images[] = {&picture};
    const double ms = MedianMs(device.stream(), [&] { embedder.Encode(images, out); });
    fmt::print("1 picture of {} tokens, uploaded: {:.3f} ms\n", picture.num_patches(), ms);
  }
}

void TimeAudio(const TowersPlan& plan, const TowerTensors& tensors, TowerDevice& device,
               float* out) {
  CudaAudioTower tower(plan, tensors, device);
  for (const int frames : {999, 2999}) {
    const std::vector<float> mel(int64_t{frames} * kNumMelBands, 0.1f);
    const double ms = MedianMs(device.stream(), [&] { tower.Encode(mel, out); });
    fmt::print("{} s of sound, uploaded: {:.3f} ms\n", (frames + 1) / 100, ms);
  }
}

Status Bench(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadFile(directory / "config.json", kMaxConfigFileBytes));
  ASSIGN_OR_RETURN(const Json config, ParseJson(text, directory.string()));
  ASSIGN_OR_RETURN(const TowersPlan plan, MakeTowersPlan(config, directory.string()));
  LAPIDARY_CUDA_CHECK(cudaSetDevice(0));
  TowerDevice device(0);
  const PinnedBuffer out(int64_t{1120} * plan.text_hidden * int64_t{sizeof(float)}, "results");
  if (plan.has_vision()) {
    ASSIGN_OR_RETURN(const TowerTensors tensors,
                     TowerTensors::Open(directory, VisionTensors(plan)));
    if (plan.vision_tower) TimeVision(plan, tensors, device, out.As<float>());
    if (plan.cell_embedder) TimeCells(plan, tensors, device, out.As<float>());
  }
  if (plan.audio_tower) {
    ASSIGN_OR_RETURN(const TowerTensors tensors, TowerTensors::Open(directory, AudioTensors(plan)));
    TimeAudio(plan, tensors, device, out.As<float>());
  }
  return {};
}

// A random checkpoint of this config, for as long as it is timed.
Status BenchConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigFileBytes));
  ASSIGN_OR_RETURN(const Json config, ParseJson(text, path));
  std::string pattern = (std::filesystem::temp_directory_path() / "towers-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return MakeError("cannot make {}", pattern);
  ThreadPool threads(0);
  Status status = WriteSyntheticCheckpoint(config, {}, pattern, threads);
  if (status.ok()) status = Bench(pattern);
  std::error_code ignored;
  std::filesystem::remove_all(pattern, ignored);
  return status;
}

}  // namespace
}  // namespace lapidary::cuda

int main(int argc, char** argv) {
  CLI::App app("Times a model's towers on the GPU.");
  std::string model;
  app.add_option("MODEL", model, "A checkpoint directory, or a config.json for random weights")
      ->required();
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(spdlog::level::warn);
  const lapidary::Status status = std::filesystem::is_directory(model)
                                      ? lapidary::cuda::Bench(model)
                                      : lapidary::cuda::BenchConfig(model);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.error().message);
  return 1;
}
