#include "model/compressed_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <span>

#include "model/compressed_matrix.h"
#include "model/converted_source.h"
#include "model/presets.h"
#include "model/tensor_sources.h"
#include "tensor/decode.h"
#include "tensor/float8.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

// A checkpoint in memory, written by the rules of the format: nothing of the reader is used.
struct Tensors {
  struct Stored {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
    TensorView view() const { return {bytes.data(), dtype, shape}; }
  };
  std::map<std::string, Stored> stored;
  std::map<std::string, std::vector<float>> values;  // by module
  std::mt19937 random{7};

  template <typename T>
  void Add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           const std::vector<T>& data) {
    const auto* begin = reinterpret_cast<const std::byte*>(data.data());
    stored[name] = {dtype, std::move(shape), {begin, begin + data.size() * sizeof(T)}};
  }

  // [rows, cols / group] of bf16, none of them tiny; returns their values.
  std::vector<float> AddScales(const std::string& module, std::vector<int64_t> shape) {
    std::vector<uint16_t> bits;
    std::vector<float> scales;
    for (int64_t idx = 0; idx < shape[0] * shape[1]; ++idx) {
      bits.push_back(static_cast<uint16_t>(0x3a00 + random() % 0x180));
      scales.push_back(Bf16ToFloat(bits.back()));
    }
    Add(module + ".weight_scale", DType::kBF16, std::move(shape), bits);
    return scales;
  }

  void AddPacked(const std::string& module, int64_t rows, int64_t cols, int bits, int64_t group,
                 bool has_zeros) {
    const int64_t groups = cols / group;
    const uint32_t mask = (1u << bits) - 1;
    const int64_t words = cols * bits / 32;
    std::vector<uint32_t> packed(rows * words), zeros((rows * bits + 31) / 32 * groups);
    const std::vector<float> scales = AddScales(module, {rows, groups});
    for (uint32_t& word : packed) word = static_cast<uint32_t>(random());
    for (uint32_t& word : zeros) word = static_cast<uint32_t>(random());
    Add(module + ".weight_packed", DType::kI32, {rows, words}, packed);
    Add(module + ".weight_shape", DType::kI64, {2}, std::vector<int64_t>{rows, cols});
    if (has_zeros) {
      Add(module + ".weight_zero_point", DType::kI32, {(rows * bits + 31) / 32, groups}, zeros);
    }
    std::vector<float>& expected = values[module];
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const int per_word = 32 / bits;
        const uint32_t code = packed[row * words + col / per_word] >> col % per_word * bits & mask;
        const uint32_t zero =
            has_zeros ? zeros[row / per_word * groups + col / group] >> row % per_word * bits & mask
                      : 1u << (bits - 1);
        expected.push_back((static_cast<float>(code) - static_cast<float>(zero)) *
                           scales[row * groups + col / group]);
      }
    }
  }

  // FP8 with a scale for the module, for each row or for each square of 128.
  void AddFloat8(const std::string& module, int64_t rows, int64_t cols, int64_t square) {
    std::vector<uint8_t> codes(rows * cols);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % 0x7f + random() % 2 * 0x80);
    Add(module + ".weight", DType::kF8E4M3, {rows, cols}, codes);
    const std::vector<int64_t> shape =
        square == 0   ? std::vector<int64_t>{1, 1}
        : square == 1 ? std::vector<int64_t>{rows, 1}
                      : std::vector<int64_t>{(rows + 127) / 128, (cols + 127) / 128};
    const std::vector<float> scales = AddScales(module, shape);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const int64_t at = square == 0 ? 0 : square == 1 ? row : row / 128 * shape[1] + col / 128;
        values[module].push_back(scales[at] * Float8ToFloat(codes[row * cols + col]));
      }
    }
  }

  // NVFP4 in modelopt's names, or in those of compressed-tensors.
  void AddFloat4(const std::string& module, int64_t rows, int64_t cols, bool is_modelopt) {
    constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    std::vector<uint8_t> codes(rows * cols / 2), scales(rows * cols / 16);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(random() % 0x7f);
    const float global = 0.01f * static_cast<float>(1 + random() % 100);
    Add(module + (is_modelopt ? ".weight" : ".weight_packed"), DType::kU8, {rows, cols / 2}, codes);
    Add(module + ".weight_scale", DType::kF8E4M3, {rows, cols / 16}, scales);
    Add(module + (is_modelopt ? ".weight_scale_2" : ".weight_global_scale"), DType::kF32, {1},
        std::vector<float>{global});
    for (int64_t idx = 0; idx < rows * cols; ++idx) {
      const int code = codes[idx / 2] >> idx % 2 * 4 & 15;
      const float value = code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8];
      const float scale = Float8ToFloat(scales[idx / 16]);
      values[module].push_back(value * (is_modelopt ? scale * global : scale / global));
    }
  }

  void AddBf16(const std::string& module, int64_t rows, int64_t cols) {
    std::vector<uint16_t> bits(rows * cols);
    for (uint16_t& value : bits) {
      value = static_cast<uint16_t>(0x3c00 + random() % 0x200);
      values[module].push_back(Bf16ToFloat(value));
    }
    Add(module + ".weight", DType::kBF16, {rows, cols}, bits);
  }

  FindTensor Finder() {
    return [this](const std::string& name) -> const TensorView* {
      const auto it = stored.find(name);
      if (it == stored.end()) return nullptr;
      views_[name] = it->second.view();
      return &views_[name];
    };
  }

 private:
  std::map<std::string, TensorView> views_;
};

// As the CPU has it.
struct OnCpu {
  std::shared_ptr<const TensorSource> source;
  MatrixRef matrix;
  WeightFormat format;
  std::vector<float> values;

  explicit OnCpu(const MatrixRef& stored) {
    const TensorSpec spec{
        "m", {stored.rows, stored.cols}, TensorComponent::kMlp, TensorRole::kMatrix};
    ThreadPool threads(1);
    source = ConvertForCpu({spec}, std::make_shared<Source>(stored), {}, threads).value();
    matrix = HostStorage(*source).GetMatrix(spec).value();
    format = matrix.format;
    values = DecodeMatrix(matrix);
  }

 private:
  struct Source : TensorSource {
    explicit Source(const MatrixRef& matrix) : matrix_(matrix) {}
    Result<TensorView> Get(const TensorSpec&) const override { return MakeError("no values"); }
    Result<std::vector<MatrixRef>> GetStored(const TensorSpec&) const override {
      return std::vector<MatrixRef>{matrix_};
    }
    const MatrixRef matrix_;
  };
};

struct GoldenTensor {
  const char* name;
  DType dtype;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
};
struct GoldenModule {
  const char* name;
  int64_t cols;
  std::vector<GoldenTensor> tensors;
  std::span<const uint8_t> values;  // bf16
};
#include "model/compressed_goldens.inc"

// The package multiplies in bf16; what the CPU holds is the product before it is rounded.
TEST(CompressedMatrix, ReadsWhatTheCompressedTensorsPackageWrites) {
  for (const GoldenModule& module : kGoldenModules) {
    Tensors tensors;
    for (const GoldenTensor& tensor : module.tensors) {
      tensors.Add(std::string("m.") + tensor.name, tensor.dtype, tensor.shape,
                  std::vector<uint8_t>(tensor.bytes.begin(), tensor.bytes.end()));
    }
    const int64_t rows = static_cast<int64_t>(module.values.size()) / 2 / module.cols;
    const auto matrix = FindCompressed(tensors.Finder(), "m", rows, module.cols);
    ASSERT_TRUE(matrix.ok()) << module.name << ": " << matrix.error().message;
    const std::vector<float> got = OnCpu(*matrix).values;
    for (size_t idx = 0; idx < got.size(); ++idx) {
      uint16_t want;
      std::memcpy(&want, module.values.data() + 2 * idx, sizeof(want));
      ASSERT_EQ(FloatToBf16(got[idx]), want) << module.name << " " << idx;
    }
  }
}

TEST(CompressedMatrix, PackedCodesBecomeBlocksWithoutLoss) {
  struct Case {
    int bits;
    int64_t group;
    bool has_zeros;
    DType type;
  };
  constexpr Case kCases[] = {{4, 32, false, DType::kQ4_0},  {4, 128, false, DType::kQ4_0},
                             {4, 32, true, DType::kQ5_0},   {4, 128, true, DType::kQ5_0},
                             {8, 256, false, DType::kQ8_0}, {8, 64, true, DType::kF32},
                             {4, 16, false, DType::kF32}};
  for (const Case& test : kCases) {
    Tensors tensors;
    tensors.AddPacked("m", 9, 256, test.bits, test.group, test.has_zeros);
    const auto matrix = FindCompressed(tensors.Finder(), "m", 9, 256);
    ASSERT_TRUE(matrix.ok()) << matrix.error().message;
    const OnCpu loaded(*matrix);
    EXPECT_EQ(loaded.format, FormatOf(test.type)) << test.bits << " bits, groups of " << test.group;
    EXPECT_EQ(loaded.values, tensors.values["m"]);
    EXPECT_EQ(DecodeMatrix(*matrix), tensors.values["m"]);
  }
}

TEST(CompressedMatrix, ScalesThatAreNoHalvesMakeFloats) {
  Tensors tensors;
  tensors.AddPacked("m", 2, 64, 4, 32, false);
  tensors.Add("m.weight_scale", DType::kF32, {2, 2}, std::vector<float>{0.1f, 1.0f, 2.0f, 3.0f});
  const auto matrix = FindCompressed(tensors.Finder(), "m", 2, 64);
  ASSERT_TRUE(matrix.ok()) << matrix.error().message;
  const OnCpu loaded(*matrix);
  EXPECT_EQ(loaded.format, FormatOf(DType::kF32));
  const int code = std::to_integer<int>(tensors.stored["m.weight_packed"].bytes[0]) & 15;
  EXPECT_EQ(loaded.values[0], static_cast<float>(code - 8) * 0.1f);
}

TEST(CompressedMatrix, BytesAreTakenWithOneScaleARow) {
  Tensors tensors;
  std::vector<int8_t> codes(3 * 32);
  for (size_t idx = 0; idx < codes.size(); ++idx) codes[idx] = static_cast<int8_t>(idx * 5 - 128);
  tensors.Add("m.weight", DType::kI8, {3, 32}, codes);
  const std::vector<float> scales = tensors.AddScales("m", {3, 1});
  const auto matrix = FindCompressed(tensors.Finder(), "m", 3, 32);
  ASSERT_TRUE(matrix.ok()) << matrix.error().message;
  const OnCpu loaded(*matrix);
  ASSERT_EQ(loaded.format, FormatOf(DType::kQ8_0));
  const std::vector<float>& got = loaded.values;
  for (size_t idx = 0; idx < codes.size(); ++idx) {
    EXPECT_EQ(got[idx], static_cast<float>(codes[idx]) * scales[idx / 32]);
  }
}

TEST(CompressedMatrix, Float8IsScaledByTensorRowOrSquare) {
  // 0x38 is 1, 0xc4 is -3, 0x01 the smallest, 0x7e the largest.
  const std::vector<uint8_t> pattern = {0x38, 0xc4, 0x01, 0x7e, 0x00, 0x80};
  const std::vector<float> meaning = {1.0f, -3.0f, 0x1p-9f, 448.0f, 0.0f, -0.0f};
  constexpr int64_t kRows = 130, kCols = 192;
  std::vector<uint8_t> codes(kRows * kCols);
  for (size_t idx = 0; idx < codes.size(); ++idx) codes[idx] = pattern[idx % pattern.size()];
  for (const auto& shape : {std::vector<int64_t>{1, 1}, {kRows, 1}, {2, 2}}) {
    Tensors tensors;
    tensors.Add("m.weight", DType::kF8E4M3, {kRows, kCols}, codes);
    const std::vector<float> scales = tensors.AddScales("m", shape);
    const auto matrix = FindCompressed(tensors.Finder(), "m", kRows, kCols);
    ASSERT_TRUE(matrix.ok()) << matrix.error().message;
    const OnCpu loaded(*matrix);
    // Where it lies.
    EXPECT_EQ(loaded.matrix.data, matrix->data);
    EXPECT_EQ(loaded.format, matrix->format);
    const std::vector<float>& got = loaded.values;
    for (size_t idx = 0; idx < codes.size(); ++idx) {
      const size_t row = idx / kCols, col = idx % kCols;
      const float scale = scales.size() == 1       ? scales[0]
                          : scales.size() == kRows ? scales[row]
                                                   : scales[row / 128 * 2 + col / 128];
      ASSERT_EQ(got[idx], meaning[idx % 6] * scale) << row << "," << col;
    }
  }
}

// modelopt's names; the other ones are in the goldens.
TEST(CompressedMatrix, Nvfp4OfModeloptIsTimesItsSecondScale) {
  Tensors tensors;
  std::vector<uint8_t> codes(2 * 16);
  for (size_t idx = 0; idx < codes.size(); ++idx) codes[idx] = static_cast<uint8_t>(idx * 7);
  tensors.Add("m.weight", DType::kU8, {2, 16}, codes);
  tensors.Add("m.weight_scale", DType::kF8E4M3, {2, 2},
              std::vector<uint8_t>{0x38, 0x40, 0x7e, 0x01});
  tensors.Add("m.weight_scale_2", DType::kF32, {}, std::vector<float>{0.0123f});
  const auto find = [&] { return FindCompressed(tensors.Finder(), "m", 2, 32); };
  auto matrix = find();
  ASSERT_TRUE(matrix.ok()) << matrix.error().message;
  const OnCpu loaded(*matrix);
  EXPECT_EQ(loaded.matrix.data, matrix->data);
  EXPECT_EQ(loaded.matrix.bytes().total(), 2 * 16 + 4 + 4);
  const std::vector<float>& got = loaded.values;
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  constexpr float kScales[4] = {1.0f, 2.0f, 448.0f, 0x1p-9f};
  for (size_t idx = 0; idx < got.size(); ++idx) {
    const int code = codes[idx / 2] >> idx % 2 * 4 & 15;
    const float value = code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8];
    EXPECT_EQ(got[idx], value * (kScales[idx / 16] * 0.0123f)) << idx;
  }
  tensors.stored["m.weight_scale"].shape = {1, 4};
  matrix = find();
  ASSERT_FALSE(matrix.ok());
  EXPECT_THAT(matrix.error().message, HasSubstr("m.weight_scale is F8_E4M3 [1, 4]"));
  tensors.stored["m.weight_scale"].shape = {2, 2};
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity()}) {
    tensors.Add("m.weight_scale_2", DType::kF32, {}, std::vector<float>{bad});
    matrix = find();
    ASSERT_FALSE(matrix.ok());
    EXPECT_THAT(matrix.error().message, HasSubstr("m.weight_scale_2 is "));
  }
  tensors.Add("m.weight_global_scale", DType::kF32, {1}, std::vector<float>{1.0f});
  matrix = find();
  ASSERT_FALSE(matrix.ok());
  EXPECT_THAT(matrix.error().message, HasSubstr("m has both a weight_scale_2 and"));
  tensors.stored.erase("m.weight_global_scale");
  tensors.stored.erase("m.weight_scale_2");
  matrix = find();
  ASSERT_FALSE(matrix.ok());
  EXPECT_THAT(matrix.error().message, HasSubstr("m: one weight_scale_2"));
}

TEST(CompressedMatrix, RefusesWhatItCannotMean) {
  const auto problem = [](const std::function<void(Tensors&)>& change) {
    Tensors tensors;
    tensors.AddPacked("m", 8, 64, 4, 32, true);
    change(tensors);
    const auto matrix = FindCompressed(tensors.Finder(), "m", 8, 64);
    return matrix.ok() ? std::string("none") : matrix.error().message;
  };
  EXPECT_EQ(problem([](Tensors&) {}), "none");
  EXPECT_THAT(problem([](Tensors& t) { t.stored.erase("m.weight_scale"); }),
              HasSubstr("m.weight_scale is missing"));
  EXPECT_THAT(problem([](Tensors& t) { t.stored.erase("m.weight_packed"); }),
              HasSubstr("m.weight and .weight_packed are missing"));
  EXPECT_THAT(problem([](Tensors& t) {
                t.stored["m.weight_packed"].shape = {8, 4};
              }),
              HasSubstr("no matrix of 8 x 64"));
  EXPECT_THAT(problem([](Tensors& t) { t.stored["m.weight_packed"].dtype = DType::kU8; }),
              HasSubstr("no matrix of 8 x 64"));
  EXPECT_THAT(problem([](Tensors& t) {
                t.stored["m.weight_scale"].shape = {2, 8};
              }),
              HasSubstr("m.weight_scale is BF16 [2, 8]"));
  EXPECT_THAT(problem([](Tensors& t) {
                t.stored["m.weight_zero_point"].shape = {2, 1};
              }),
              HasSubstr("m.weight_zero_point is I32 [2, 1]"));
  EXPECT_THAT(problem([](Tensors& t) {
                t.Add("m.weight_shape", DType::kI64, {2}, std::vector<int64_t>{8, 60});
              }),
              HasSubstr("m.weight_shape is 8 x 60"));
  EXPECT_THAT(problem([](Tensors& t) {
                t.Add("m.weight", DType::kI8, {8, 64}, std::vector<int8_t>(8 * 64));
              }),
              HasSubstr("m has both a weight and a weight_packed"));
  for (const char* name : {"m.weight_scale_2", "m.weight_global_scale"}) {
    EXPECT_THAT(
        problem([&](Tensors& t) { t.Add(name, DType::kF32, {1}, std::vector<float>{1.0f}); }),
        HasSubstr(std::string(name) + " belongs to codes of NVFP4"));
  }
  for (const uint16_t bits : {uint16_t{0xbf80}, uint16_t{0x7f80}, uint16_t{0x7fc0}}) {
    EXPECT_THAT(problem([&](Tensors& t) {
                  std::memcpy(t.stored["m.weight_scale"].bytes.data() + 6, &bits, sizeof(bits));
                }),
                HasSubstr("m.weight_scale[1, 1] is "));
  }
  EXPECT_THAT(problem([](Tensors& t) {
                t.Add("m.weight_scale", DType::kBF16, {8, 2}, std::vector<uint16_t>(16));
              }),
              HasSubstr("m.weight_scale holds nothing but zeros"));
  EXPECT_THAT(problem([](Tensors& t) {
                t.Add("m.weight_g_idx", DType::kI32, {64}, std::vector<int32_t>(64));
              }),
              HasSubstr("another order"));
}

class CompressedSourceTest : public testing::Test {
 protected:
  // Rows of whole blocks, of experts too.
  static ModelPlan Plan() {
    Json config = *PresetConfig("tiny-moe");
    config["hidden_size"] = 96;
    config["moe_intermediate_size"] = 64;
    return MakeModelPlan(ParseModelConfig(config, "test").value()).value();
  }

  CompressedSourceTest()
      : plan_(Plan()),
        directory_(std::filesystem::path(testing::TempDir()) /
                   fmt::format("compressed_{}", getpid())) {
    std::filesystem::create_directories(directory_);
    for (const TensorSpec& spec : RequiredTensors(plan_)) AddTensor(spec);
  }
  ~CompressedSourceTest() override { std::filesystem::remove_all(directory_); }

  static bool IsQuantised(const TensorSpec& spec) {
    return spec.shape.size() > 1 && spec.shape.back() % 32 == 0 &&
           (spec.component == TensorComponent::kAttention ||
            spec.component == TensorComponent::kMlp || spec.component == TensorComponent::kExperts);
  }

  void AddTensor(const TensorSpec& spec) {
    const std::string module = spec.name.substr(0, spec.name.rfind('.'));
    if (!IsQuantised(spec)) {
      tensors_.Add(spec.name, DType::kBF16, spec.shape,
                   std::vector<uint16_t>(spec.num_elements(), 0x3f80));
    } else if (spec.component != TensorComponent::kExperts) {
      tensors_.AddPacked(module, spec.shape[0], spec.shape[1], 4, 32, false);
    } else {
      const bool is_gate_up = spec.name.ends_with("gate_up_proj");
      for (int64_t expert = 0; expert < spec.shape[0]; ++expert) {
        const auto add = [&](const char* name, int64_t rows) {
          tensors_.AddPacked(fmt::format("{}.{}.{}", module, expert, name), rows, spec.shape[2], 4,
                             32, false);
        };
        if (is_gate_up) {
          add("gate_proj", spec.shape[1] / 2);
          add("up_proj", spec.shape[1] / 2);
        } else {
          add("down_proj", spec.shape[1]);
        }
      }
    }
  }

  // As loading for the CPU does it.
  Result<std::shared_ptr<const TensorSource>> Open() {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor] : tensors_.stored) {
      entries.push_back(
          {.name = "model.language_model." + name, .dtype = tensor.dtype, .shape = tensor.shape});
    }
    std::ofstream file(directory_ / "model.safetensors", std::ios::binary);
    file << MakeSafetensorsHeader(entries, {});
    for (const auto& [name, tensor] : tensors_.stored) {
      file.write(reinterpret_cast<const char*>(tensor.bytes.data()),
                 static_cast<std::streamsize>(tensor.bytes.size()));
    }
    file.close();
    ThreadPool threads(2);
    ASSIGN_OR_RETURN(auto stored, CompressedSource::Open(directory_, plan_));
    PrefaultWeights(plan_, *stored, threads);
    return ConvertForCpu(RequiredTensors(plan_), std::move(stored), {}, threads);
  }

  const ModelPlan plan_;
  const std::filesystem::path directory_;
  Tensors tensors_;
};

TEST_F(CompressedSourceTest, EveryTensorOfAModelIsFoundExpertsAmongThem) {
  const auto source = Open();
  ASSERT_TRUE(source.ok()) << source.error().message;
  int num_quantised = 0;
  for (const TensorSpec& spec : RequiredTensors(plan_)) {
    const TensorView tensor = (*source)->Get(spec).value();
    ASSERT_EQ(tensor.shape, spec.shape) << spec.name;
    if (!IsQuantised(spec)) {
      EXPECT_EQ(tensor.dtype, DType::kBF16) << spec.name;
      continue;
    }
    ++num_quantised;
    EXPECT_EQ(tensor.dtype, DType::kQ4_0) << spec.name;
    const std::string module = spec.name.substr(0, spec.name.rfind('.'));
    std::vector<float> expected;
    const auto append = [&](const std::string& name) {
      const std::vector<float>& values = tensors_.values.at(name);
      expected.insert(expected.end(), values.begin(), values.end());
    };
    if (spec.component != TensorComponent::kExperts) {
      append(module);
    } else {
      for (int64_t expert = 0; expert < spec.shape[0]; ++expert) {
        if (spec.name.ends_with("gate_up_proj")) {
          append(fmt::format("{}.{}.gate_proj", module, expert));
          append(fmt::format("{}.{}.up_proj", module, expert));
        } else {
          append(fmt::format("{}.{}.down_proj", module, expert));
        }
      }
    }
    EXPECT_EQ(ToFloats(tensor), expected) << spec.name;
  }
  EXPECT_GT(num_quantised, 4 * plan_.num_layers);
}

// Each expert has scales of its own; the layer's are one matrix, of the same codes.
TEST_F(CompressedSourceTest, ExpertsOfFp8AndNvfp4KeepTheirCodesAndValues) {
  using Add = std::function<void(const std::string&, int64_t, int64_t)>;
  const Add kinds[] = {
      [&](const std::string& m, int64_t rows, int64_t cols) {
        tensors_.AddFloat8(m, rows, cols, 0);
      },
      [&](const std::string& m, int64_t rows, int64_t cols) {
        tensors_.AddFloat8(m, rows, cols, 1);
      },
      [&](const std::string& m, int64_t rows, int64_t cols) {
        tensors_.AddFloat8(m, rows, cols, 128);
      },
      [&](const std::string& m, int64_t rows, int64_t cols) {
        tensors_.AddFloat4(m, rows, cols, true);
      },
      [&](const std::string& m, int64_t rows, int64_t cols) {
        tensors_.AddFloat4(m, rows, cols, false);
      },
      [&](const std::string& m, int64_t rows, int64_t cols) { tensors_.AddBf16(m, rows, cols); },
  };
  for (const Add& add : kinds) {
    tensors_ = {};
    for (const TensorSpec& spec : RequiredTensors(plan_)) AddTensor(spec);
    std::map<std::string, std::vector<float>> expected;
    for (const TensorSpec& spec : RequiredTensors(plan_)) {
      if (spec.component != TensorComponent::kExperts || spec.shape.size() < 3) continue;
      const std::string prefix = spec.name.substr(0, spec.name.rfind('.'));
      const bool is_gate_up = spec.name.ends_with("gate_up_proj");
      std::vector<std::string> names = {"down_proj"};
      if (is_gate_up) names = {"gate_proj", "up_proj"};
      for (int64_t expert = 0; expert < spec.shape[0]; ++expert) {
        for (const std::string& name : names) {
          const std::string module = fmt::format("{}.{}.{}", prefix, expert, name);
          for (const char* part : {".weight_packed", ".weight_scale", ".weight_shape"}) {
            tensors_.stored.erase(module + part);
          }
          tensors_.values[module].clear();
          add(module, spec.shape[1] / static_cast<int64_t>(names.size()), spec.shape[2]);
          const std::vector<float>& values = tensors_.values[module];
          expected[spec.name].insert(expected[spec.name].end(), values.begin(), values.end());
        }
      }
    }
    const auto source = Open();
    ASSERT_TRUE(source.ok()) << source.error().message;
    for (const TensorSpec& spec : RequiredTensors(plan_)) {
      if (!expected.contains(spec.name)) continue;
      const MatrixRef matrix = HostStorage(**source).GetMatrix(spec).value();
      EXPECT_TRUE(matrix.format.is_float_codes() || matrix.format == FormatOf(DType::kBF16));
      EXPECT_EQ(DecodeMatrix(matrix), expected[spec.name]) << FormatName(matrix.format);
    }
  }
}

TEST_F(CompressedSourceTest, AScaleBesideAWeightThatHasNoneIsNamed) {
  const std::string module = "layers.0.experts.1.up_proj";
  for (const char* part : {".weight_packed", ".weight_shape"}) tensors_.stored.erase(module + part);
  tensors_.AddBf16(module, 64, 96);
  const auto source = Open();
  ASSERT_FALSE(source.ok());
  EXPECT_THAT(source.error().message, HasSubstr(module + ".weight_scale belongs to codes"));
}

TEST_F(CompressedSourceTest, AMissingExpertAndAStrangerAreNamed) {
  tensors_.Add("layers.0.stranger.weight_packed", DType::kI32, {1}, std::vector<int32_t>{1});
  auto source = Open();
  ASSERT_FALSE(source.ok());
  EXPECT_THAT(source.error().message, HasSubstr("'layers.0.stranger.weight_packed' does not"));
  tensors_.stored.erase("layers.0.stranger.weight_packed");
  ASSERT_EQ(tensors_.stored.erase("layers.0.experts.1.up_proj.weight_packed"), 1u);
  source = Open();
  ASSERT_FALSE(source.ok());
  EXPECT_THAT(source.error().message, HasSubstr("layers.0.experts.1.up_proj.weight"));
}

}  // namespace
}  // namespace lapidary
