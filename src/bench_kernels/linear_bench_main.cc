// cuda_linear_bench [--json FILE] [--only NAME] [--variants]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "bench_kernels/linear_bench.h"
#include "device/device_probe.h"

int main(int argc, char** argv) {
  CLI::App app("Times the CUDA linear layers at the models' shapes");
  lapidary::LinearBenchOptions options;
  std::string json_path;
  app.add_option("--json", json_path, "Write all measurements to this file");
  app.add_option("--only", options.only, "Only names that contain this");
  app.add_flag("--variants", options.variants, "Also time other plans for streaming");
  CLI11_PARSE(app, argc, argv);
  const lapidary::GpuList list = lapidary::ListGpus();
  if (list.gpus.empty()) {
    fmt::print(stderr, "cuda_linear_bench: no GPU: {}\n", list.problem);
    return 1;
  }
  const lapidary::LinearBenchResult result = lapidary::BenchLinear(options);
  fmt::print("{}", lapidary::FormatLinearBench(result));
  if (!json_path.empty()) {
    std::vector<lapidary::KernelRow> rows = result.shapes;
    rows.insert(rows.end(), result.variants.begin(), result.variants.end());
    rows.insert(rows.end(), result.algorithms.begin(), result.algorithms.end());
    rows.insert(rows.end(), result.layers.begin(), result.layers.end());
    std::ofstream file(json_path);
    file << lapidary::ToJson(rows);
    file.close();
    if (!file) {
      fmt::print(stderr, "cuda_linear_bench: cannot write {}\n", json_path);
      return 1;
    }
  }
  return 0;
}
