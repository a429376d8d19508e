// Runs a fuzz target over every file of the given directories: a fuzzer's corpus as a plain test.
// `--random COUNT` adds inputs of random bytes, the same ones every time.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void RunRandom(int count) {
  std::mt19937 random(1);
  for (int idx = 0; idx < count; ++idx) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  int num_inputs = 0;
  for (int arg_idx = 1; arg_idx < argc; ++arg_idx) {
    if (std::string_view(argv[arg_idx]) == "--random" && arg_idx + 1 < argc) {
      const int count = std::atoi(argv[++arg_idx]);
      RunRandom(count);
      num_inputs += count;
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[arg_idx])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++num_inputs;
    }
  }
  std::printf("replayed %d inputs\n", num_inputs);
  return num_inputs > 0 ? 0 : 1;  // An empty corpus proves nothing.
}
