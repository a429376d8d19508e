#include "adapter/adapter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "adapter/adapter_file.h"
#include "model/presets.h"
#include "tensor/decode.h"

namespace lapidary {
namespace {

ModelPlan PresetPlan(const std::string& name) {
  const auto config = ParseModelConfig(*PresetConfig(name), name);
  return MakeModelPlan(*config).value();
}

Result<std::shared_ptr<const Adapter>> Read(const ModelPlan& plan, const AdapterFile& file,
                                            const std::string& config = R"({"r": 2})",
                                            AdapterOptions options = {}) {
  return Adapter::Parse(config, file.Bytes(), plan, options, "a");
}

std::string Refusal(const ModelPlan& plan, const AdapterFile& file,
                    const std::string& config = R"({"r": 2})", AdapterOptions options = {}) {
  const auto adapter = Read(plan, file, config, options);
  EXPECT_FALSE(adapter.ok());
  return adapter.ok() ? "" : adapter.error().message;
}

std::vector<float> Values(const MatrixRef& matrix) {
  std::vector<float> values(int64_t{matrix.rows} * matrix.cols);
  for (int row = 0; row < matrix.rows; ++row) {
    DecodeRow(matrix, row, values.data() + int64_t{row} * matrix.cols);
  }
  return values;
}

class AdapterTest : public testing::Test {
 protected:
  // hidden 96, q rows 4 * 256 (full: 4 * 512), KV heads 2; layers 5 to 8 read others' KV.
  const ModelPlan e_ = PresetPlan("tiny-e");
  // hidden 80, 16 experts of width 48; full layers have K = V and one KV head.
  const ModelPlan moe_ = PresetPlan("tiny-moe");
};

TEST_F(AdapterTest, NamesComeWithAndWithoutTheirPrefixes) {
  for (const std::string prefix :
       {"base_model.model.model.language_model.", "base_model.model.model.",
        "base_model.model.language_model.model.", "model.language_model.", ""}) {
    AdapterFile file;
    file.Add(prefix + "layers.1.self_attn.q_proj.lora_A.weight", {2, 96});
    file.Add(prefix + "layers.1.self_attn.q_proj.lora_B.weight", {1024, 2});
    const auto adapter = Read(e_, file, R"({"r": 2, "lora_alpha": 3})");
    ASSERT_TRUE(adapter.ok()) << adapter.error().message;
    EXPECT_EQ((*adapter)->Summary(), "1 of 1 modules, rank 2");
    const LoraDelta* const delta = (*adapter)->Find(AdapterSite::kQuery, 1);
    ASSERT_NE(delta, nullptr) << prefix;
    EXPECT_EQ(delta->scale, 1.5f);
    EXPECT_EQ(Values(delta->b)[5], AdapterFile::Value(5));
    EXPECT_EQ((*adapter)->Find(AdapterSite::kQuery, 0), nullptr);
    EXPECT_EQ((*adapter)->Find(AdapterSite::kKey, 1), nullptr);
  }
}

TEST_F(AdapterTest, EveryKindOfMatrixHasItsPlace) {
  const struct {
    const char* module;
    AdapterSite site;
    int layer, rows, cols;
  } cases[] = {
      {"model.layers.2.self_attn.q_proj", AdapterSite::kQuery, 2, 2048, 96},
      {"model.layers.0.self_attn.k_proj", AdapterSite::kKey, 0, 512, 96},
      {"model.layers.0.self_attn.v_proj", AdapterSite::kValue, 0, 512, 96},
      {"model.layers.8.self_attn.o_proj", AdapterSite::kAttentionOutput, 8, 96, 2048},
      {"model.layers.8.mlp.gate_proj", AdapterSite::kMlpGate, 8, 256, 96},
      {"model.layers.0.mlp.up_proj", AdapterSite::kMlpUp, 0, 128, 96},
      {"model.layers.0.mlp.down_proj", AdapterSite::kMlpDown, 0, 96, 128},
      {"model.layers.4.per_layer_input_gate", AdapterSite::kPerLayerGate, 4, 32, 96},
      {"model.layers.4.per_layer_projection", AdapterSite::kPerLayerProjection, 4, 96, 32},
      {"model.per_layer_model_projection", AdapterSite::kPerLayerModelProjection, -1, 288, 96},
  };
  AdapterFile file;
  for (const auto& entry : cases) file.AddPair(entry.module, entry.rows, entry.cols, 2);
  const auto adapter = Read(e_, file);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_EQ((*adapter)->num_applied(), 10);
  for (const auto& entry : cases) {
    const LoraDelta* const delta = (*adapter)->Find(entry.site, entry.layer);
    ASSERT_NE(delta, nullptr) << entry.module;
    EXPECT_EQ(delta->a.cols, entry.cols);
    EXPECT_EQ(delta->b.rows, entry.rows);
  }
  const auto router = Read(moe_, AdapterFile().AddPair("model.layers.5.router.proj", 16, 80, 2));
  ASSERT_TRUE(router.ok()) << router.error().message;
  EXPECT_NE((*router)->Find(AdapterSite::kRouter, 5), nullptr);
}

TEST_F(AdapterTest, WhatFitsNowhereIsRefusedByItsName) {
  const std::string layer = "base_model.model.model.layers.1.";
  const std::vector<std::string> names = {
      layer + "self_attn.q_proj.lora_magnitude_vector",
      layer + "self_attn.q_proj.lora_B.bias",
      layer + "self_attn.qkv_proj.lora_A.weight",
      layer + "experts.lora_A.weight",
      layer + "router.proj.lora_A.weight",
      layer + "experts.0.gate_proj.lora_A.weight",
      layer + "mlp.gate_proj.lora_C.weight",
      layer + "mlp.gate_proj.weight",
      layer + "per_layer_model_projection.lora_A.weight",
      "base_model.model.model.layers.9.mlp.gate_proj.lora_A.weight",
      "base_model.model.model.layers.01.mlp.gate_proj.lora_A.weight",
      "base_model.model.model.layers.99999999999.mlp.gate_proj.lora_A.weight",
      "base_model.model.lm_head.lora_A.weight",
      "base_model.model.model.embed_tokens.lora_embedding_A",
      "base_model.model.lm_head.modules_to_save.weight",
      "base_model.model.model.vision_tower.encoder.layers.1.mlp.gate_proj.linear.lora_A.weight"};
  for (const std::string& name : names) {
    AdapterFile file;
    file.AddPair("model.layers.1.self_attn.q_proj", 1024, 96, 2).Add(name, {2, 96});
    // Its other half, so that the matrix is what is missing.
    const size_t half = name.find(".lora_A.weight");
    if (half != std::string::npos) file.Add(name.substr(0, half) + ".lora_B.weight", {2, 2});
    const std::string module =
        name.substr(std::string_view("base_model.model.").size()).substr(0, 40);
    const std::string refusal = Refusal(e_, file);
    EXPECT_NE(refusal.find(module.substr(0, module.find(".lora_"))), std::string::npos) << refusal;
  }
}

TEST_F(AdapterTest, HalvesRanksAndShapesMustAgree) {
  const std::string module = "base_model.model.model.layers.1.mlp.up_proj";
  const auto refusal = [&](std::vector<int64_t> a, std::vector<int64_t> b,
                           const std::string& config = R"({"r": 2})", AdapterOptions options = {}) {
    AdapterFile file;
    if (!a.empty()) file.Add(module + ".lora_A.weight", std::move(a));
    if (!b.empty()) file.Add(module + ".lora_B.weight", std::move(b));
    return Refusal(e_, file, config, options);
  };
  EXPECT_NE(refusal({2, 96}, {}).find("lora_B is missing"), std::string::npos);
  EXPECT_NE(refusal({}, {128, 2}).find("lora_A is missing"), std::string::npos);
  EXPECT_NE(refusal({2, 95}, {128, 2}).find("do not fit"), std::string::npos);
  EXPECT_NE(refusal({2, 96}, {127, 2}).find("do not fit"), std::string::npos);
  EXPECT_NE(refusal({2, 96}, {128, 3}).find("do not fit"), std::string::npos);
  EXPECT_NE(refusal({3, 96}, {128, 3}).find("rank is 3, but"), std::string::npos);
  EXPECT_NE(refusal({2, 96, 1}, {128, 2}).find("not that of a matrix"), std::string::npos);
  EXPECT_NE(refusal({0, 96}, {128, 0}).find("not that of a matrix"), std::string::npos);
  EXPECT_NE(refusal({8, 96}, {128, 8}, R"({"r": 8})", {.max_rank = 4}).find("at most 4"),
            std::string::npos);
  EXPECT_NE(refusal({257, 96}, {128, 257}).find("at most 256"), std::string::npos);
  EXPECT_NE(refusal({2, 96}, {128, 2}, R"({"r": 2, "target_modules": ["q_proj"]})")
                .find("target_modules"),
            std::string::npos);
  EXPECT_NE(refusal({}, {}).find("nothing"), std::string::npos);
}

TEST_F(AdapterTest, ValuesThatAreNoNumbersAndOtherTypesAreRefused) {
  const AdapterFile file = AdapterFile().AddPair("model.layers.1.mlp.up_proj", 128, 96, 2);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<std::byte> bytes = file.Bytes();
    std::memcpy(bytes.data() + bytes.size() - sizeof(bad), &bad, sizeof(bad));
    const auto adapter = Adapter::Parse(R"({"r": 2})", bytes, e_, {}, "a");
    ASSERT_FALSE(adapter.ok());
    EXPECT_NE(adapter.error().message.find("not numbers"), std::string::npos);
  }
  const AdapterFile integers =
      AdapterFile().AddPair("model.layers.1.mlp.up_proj", 128, 96, 2, DType::kI32);
  EXPECT_NE(Refusal(e_, integers).find("I32"), std::string::npos);
}

TEST_F(AdapterTest, RankAndAlphaOfAModuleComeFromThePatterns) {
  AdapterFile file;
  file.AddPair("model.layers.1.mlp.up_proj", 128, 96, 4);
  file.AddPair("model.layers.1.mlp.gate_proj", 128, 96, 2);
  const std::string config = R"({"r": 2, "lora_alpha": 8, "rank_pattern": {"up_proj": 4},
                                 "alpha_pattern": {"up_proj": 6})";
  const auto plain = Read(e_, file, config + "}", {.scale = 0.5});
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  EXPECT_EQ((*plain)->Find(AdapterSite::kMlpUp, 1)->scale, 0.75f);
  EXPECT_EQ((*plain)->Find(AdapterSite::kMlpGate, 1)->scale, 2.0f);
  EXPECT_EQ((*plain)->max_rank(), 4);
  const auto by_root = Read(e_, file, config + R"(, "use_rslora": true})");
  ASSERT_TRUE(by_root.ok()) << by_root.error().message;
  EXPECT_EQ((*by_root)->Find(AdapterSite::kMlpUp, 1)->scale, 3.0f);
}

TEST_F(AdapterTest, KeysAndValuesOfLayersThatShareKvAreIgnored) {
  AdapterFile file;
  file.AddPair("model.layers.0.self_attn.k_proj", 512, 96, 2);
  file.AddPair("model.layers.6.self_attn.k_proj", 512, 96, 2);
  file.AddPair("model.layers.6.self_attn.v_proj", 512, 96, 2);
  const auto adapter = Read(e_, file);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_EQ((*adapter)->num_applied(), 1);
  EXPECT_EQ((*adapter)->num_ignored(), 2);
  EXPECT_EQ((*adapter)->Find(AdapterSite::kKey, 6), nullptr);
  EXPECT_EQ((*adapter)->Summary(),
            "1 of 3 modules, rank 2; 2 k_proj and v_proj of layers that read another layer's KV "
            "have no effect");
}

TEST_F(AdapterTest, LayersWithoutVProjTakeNoneOfAnAdapter) {
  const auto key = Read(moe_, AdapterFile().AddPair("model.layers.2.self_attn.k_proj", 512, 80, 2));
  EXPECT_TRUE(key.ok()) << key.error().message;
  EXPECT_NE(Refusal(moe_, AdapterFile().AddPair("model.layers.2.self_attn.v_proj", 512, 80, 2))
                .find("no such matrix"),
            std::string::npos);
}

TEST_F(AdapterTest, AMatrixHasOneDelta) {
  AdapterFile file;
  file.AddPair("model.layers.1.mlp.up_proj", 128, 96, 2);
  file.AddPair("model.language_model.layers.1.mlp.up_proj", 128, 96, 2);
  EXPECT_NE(Refusal(e_, file).find("of another name"), std::string::npos);
  AdapterFile experts;
  experts.Add("base_model.model.model.layers.1.experts.lora_A.weight", {32, 48});
  experts.Add("base_model.model.model.layers.1.experts.lora_B.weight", {80, 32});
  experts.AddPair("model.layers.1.experts.3.down_proj", 80, 48, 2);
  EXPECT_NE(Refusal(moe_, experts).find("of another name"), std::string::npos);
}

// delta_e = B[:, :, e] A[e], as PEFT's ParamWrapper has it.
TEST_F(AdapterTest, StackedExpertsAreTakenApart) {
  AdapterFile file;
  const std::string experts = "base_model.model.model.layers.4.experts";
  file.Add(experts + ".base_layer.lora_A.weight", {16 * 3, 80}, DType::kBF16);
  file.Add(experts + ".base_layer.lora_B.weight", {96, 3 * 16}, DType::kBF16);
  file.Add(experts + ".lora_A.weight", {16 * 3, 48});
  file.Add(experts + ".lora_B.weight", {80, 3 * 16});
  const auto adapter = Read(moe_, file, R"({"r": 3, "target_parameters":
      ["experts.gate_up_proj", "experts.down_proj"], "lora_alpha": 3})");
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_EQ((*adapter)->num_applied(), 2);
  for (const auto& [site, out, in] :
       {std::tuple{AdapterSite::kExpertGateUp, 96, 80}, {AdapterSite::kExpertDown, 80, 48}}) {
    for (const int expert : {0, 7, 15}) {
      const auto deltas = (*adapter)->OfExpert(site, 4, expert);
      ASSERT_EQ(deltas.size(), 1u);
      const std::vector<float> a = Values(deltas[0].a);
      const std::vector<float> b = Values(deltas[0].b);
      EXPECT_EQ(a[in + 5], AdapterFile::Value((expert * 3 + 1) * in + 5));
      EXPECT_EQ(b[7 * 3 + 2], AdapterFile::Value(7 * 3 * 16 + 2 * 16 + expert));
      EXPECT_EQ(std::ssize(b), out * 3);
    }
  }
  EXPECT_TRUE((*adapter)->OfExpert(AdapterSite::kExpertDown, 3, 0).empty());
  EXPECT_NE(Refusal(moe_, file, R"({"r": 3, "target_parameters": ["experts.down_proj"]})")
                .find("experts.gate_up_proj"),
            std::string::npos);
}

TEST_F(AdapterTest, StackedExpertsOfOldFilesHaveInAndOutExchanged) {
  AdapterFile file;
  const std::string experts = "base_model.model.model.layers.4.experts";
  file.Add(experts + ".lora_A.weight", {16 * 3, 80});  // down_proj: of its rows
  file.Add(experts + ".lora_B.weight", {48, 3 * 16});
  const auto adapter = Read(moe_, file, R"({"r": 3})");
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const auto deltas = (*adapter)->OfExpert(AdapterSite::kExpertDown, 4, 9);
  ASSERT_EQ(deltas.size(), 1u);
  // A'[r][i] = B[i][r][e], B'[o][r] = A[e][r][o]
  EXPECT_EQ(Values(deltas[0].a)[2 * 48 + 11], AdapterFile::Value((11 * 3 + 2) * 16 + 9));
  EXPECT_EQ(Values(deltas[0].b)[13 * 3 + 1], AdapterFile::Value((9 * 3 + 1) * 80 + 13));
}

TEST_F(AdapterTest, ExpertsOneByOneHaveGateAndUpApart) {
  AdapterFile file;
  file.AddPair("model.layers.4.experts.5.gate_proj", 48, 80, 2);
  file.AddPair("model.layers.4.experts.5.up_proj", 48, 80, 2);
  file.AddPair("model.layers.4.experts.6.gate_up_proj", 96, 80, 2);
  file.AddPair("model.layers.4.experts.15.down_proj", 80, 48, 2);
  const auto adapter = Read(moe_, file);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const auto deltas = (*adapter)->OfExpert(AdapterSite::kExpertGateUp, 4, 5);
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0].first_row + deltas[1].first_row, 48);
  EXPECT_EQ((*adapter)->OfExpert(AdapterSite::kExpertGateUp, 4, 6).size(), 1u);
  EXPECT_TRUE((*adapter)->OfExpert(AdapterSite::kExpertGateUp, 4, 7).empty());
  AdapterFile outside = AdapterFile().AddPair("model.layers.4.experts.16.down_proj", 80, 48, 2);
  EXPECT_NE(Refusal(moe_, outside).find("16 experts"), std::string::npos);
}

TEST_F(AdapterTest, DataNeedNotBeAligned) {
  const auto adapter =
      Read(e_, AdapterFile().AddPair("model.layers.1.mlp.up_proj", 128, 96, 2).Misalign());
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const LoraDelta* const delta = (*adapter)->Find(AdapterSite::kMlpUp, 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(delta->a.data) % sizeof(float), 0u);
  EXPECT_EQ(Values(delta->a)[100], AdapterFile::Value(100));
}

TEST_F(AdapterTest, TheDigestIsOfAllThatMatters) {
  const AdapterFile file = AdapterFile().AddPair("model.layers.1.mlp.up_proj", 128, 96, 2);
  const AdapterFile other = AdapterFile().AddPair("model.layers.2.mlp.up_proj", 128, 96, 2);
  const uint64_t digest = (*Read(e_, file))->digest();
  EXPECT_NE(digest, 0u);
  EXPECT_EQ(digest, (*Adapter::Parse(R"({"r": 2})", file.Bytes(), e_, {}, "b"))->digest());
  EXPECT_NE(digest, (*Read(e_, other))->digest());
  EXPECT_NE(digest, (*Read(e_, file, R"({"r": 2, "lora_alpha": 5})"))->digest());
  EXPECT_NE(digest, (*Read(e_, file, R"({"r": 2})", {.scale = 2.0}))->digest());
}

// llama.cpp's: its names, one alpha, experts as matrices of their own.
TEST_F(AdapterTest, GgufFilesHoldTheSame) {
  AdapterFile file;
  for (const auto& [name, rows, cols] : {std::tuple{"blk.3.attn_q.weight", 1024, 80},
                                         {"blk.3.ffn_down.weight", 80, 96},
                                         {"blk.3.ffn_gate_inp.weight", 16, 80}}) {
    file.Add(std::string(name) + ".lora_a", {3, cols}, DType::kF16);
    file.Add(std::string(name) + ".lora_b", {rows, 3});
  }
  file.Add("blk.4.ffn_gate_up_exps.weight.lora_a", {16, 2, 80});
  file.Add("blk.4.ffn_gate_up_exps.weight.lora_b", {16, 96, 2});
  const auto adapter = Adapter::ParseGguf(file.GgufBytes(6.0f), moe_, {.scale = 0.5}, "a.gguf");
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_EQ((*adapter)->Summary(), "4 of 4 modules, rank 3");
  const LoraDelta* const query = (*adapter)->Find(AdapterSite::kQuery, 3);
  ASSERT_NE(query, nullptr);
  EXPECT_EQ(query->scale, 1.0f);  // 6 / 3 * 0.5
  EXPECT_EQ(Values(query->b)[100], AdapterFile::Value(100));
  EXPECT_NE((*adapter)->Find(AdapterSite::kRouter, 3), nullptr);
  const auto expert = (*adapter)->OfExpert(AdapterSite::kExpertGateUp, 4, 7);
  ASSERT_EQ(expert.size(), 1u);
  EXPECT_EQ(expert[0].scale, 1.5f);
  EXPECT_EQ(Values(expert[0].a)[11], AdapterFile::Value(7 * 2 * 80 + 11));
  EXPECT_EQ(Values(expert[0].b)[5], AdapterFile::Value(7 * 96 * 2 + 5));
  // Without an alpha the factor is the user's alone.
  const auto unscaled = Adapter::ParseGguf(file.GgufBytes({}), moe_, {.scale = 0.5}, "a.gguf");
  ASSERT_TRUE(unscaled.ok()) << unscaled.error().message;
  EXPECT_EQ((*unscaled)->Find(AdapterSite::kQuery, 3)->scale, 0.5f);
}

TEST_F(AdapterTest, GgufFilesOfOtherThingsAreRefused) {
  const auto refusal = [&](const AdapterFile& file, const std::string& type = "adapter") {
    const auto adapter = Adapter::ParseGguf(file.GgufBytes(1.0f, type), e_, {}, "a.gguf");
    EXPECT_FALSE(adapter.ok());
    return adapter.ok() ? "" : adapter.error().message;
  };
  AdapterFile file;
  file.Add("blk.1.ffn_up.weight.lora_a", {2, 96}).Add("blk.1.ffn_up.weight.lora_b", {128, 2});
  EXPECT_NE(refusal(file, "model").find("not of a LoRA adapter"), std::string::npos);
  for (const std::string name :
       {"blk.1.ffn_up.weight", "blk.1.ffn_up.lora_a", "blk.9.ffn_up.weight.lora_a",
        "token_embd.weight.lora_a", "blk.1.attn_norm.weight.lora_a"}) {
    AdapterFile with = file;
    with.Add(name, {2, 96});
    EXPECT_NE(refusal(with), "") << name;
  }
  EXPECT_NE(refusal(AdapterFile().Add("blk.1.ffn_up.weight.lora_a", {2, 96})).find("missing"),
            std::string::npos);
}

class AdapterDirectoryTest : public AdapterTest {
 protected:
  AdapterDirectoryTest()
      : directory_(std::filesystem::temp_directory_path() /
                   ("lapidary-adapter-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(directory_);
  }
  ~AdapterDirectoryTest() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& name, const void* data, size_t size) {
    std::ofstream(directory_ / name, std::ios::binary)
        .write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  }
  std::string LoadRefusal(const std::filesystem::path& path) {
    const auto adapter = Adapter::Load(path, e_);
    EXPECT_FALSE(adapter.ok());
    return adapter.ok() ? "" : adapter.error().message;
  }

  const std::filesystem::path directory_;
};

TEST_F(AdapterDirectoryTest, ADirectoryHasAConfigAndTensors) {
  EXPECT_NE(LoadRefusal(directory_ / "missing").find("not a directory"), std::string::npos);
  EXPECT_NE(LoadRefusal(directory_).find("adapter_config.json"), std::string::npos);
  const std::string config = R"({"r": 2})";
  Write("adapter_config.json", config.data(), config.size());
  EXPECT_NE(LoadRefusal(directory_).find("adapter_model.safetensors"), std::string::npos);
  Write("adapter_model.bin", "", 0);
  EXPECT_NE(LoadRefusal(directory_).find("adapter_model.bin is not read"), std::string::npos);
  const AdapterFile file = AdapterFile().AddPair("model.layers.1.mlp.up_proj", 128, 96, 2);
  const std::vector<std::byte> bytes = file.Bytes();
  Write("adapter_model.safetensors", bytes.data(), bytes.size());
  const auto adapter = Adapter::Load(directory_, e_);
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_EQ((*adapter)->digest(), (*Read(e_, file))->digest());
}

TEST_F(AdapterDirectoryTest, FilesLargerThanAnAdapterCanBeAreNotRead) {
  const std::string config = R"({"r": 2})";
  Write("adapter_config.json", config.data(), config.size());
  Write("adapter_model.safetensors", "", 0);
  const int64_t most = MaxAdapterBytes(e_, kMaxAdapterRank);
  // A hole: the size alone decides.
  std::filesystem::resize_file(directory_ / "adapter_model.safetensors",
                               static_cast<uintmax_t>(most) + 1);
  EXPECT_NE(LoadRefusal(directory_).find("more than an adapter"), std::string::npos);
}

}  // namespace
}  // namespace lapidary
