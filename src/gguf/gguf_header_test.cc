// The GGUF reader: what it gives, and that no bad file gets past it.
#include "gguf/gguf_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "gguf/gguf_writer.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<GgufHeader> Parse(const std::string& file) {
  return ParseGguf(std::as_bytes(std::span(file)), "test.gguf");
}

std::string ErrorOf(const std::string& file) {
  const auto header = Parse(file);
  return header.ok() ? "" : header.error().message;
}

// Header and zeros for the data.
std::string FileOf(const GgufWriter& writer) {
  std::string file = writer.Header();
  file.resize(file.size() + writer.data_bytes());
  return file;
}

GgufWriter SmallFile() {
  GgufWriter writer;
  writer.AddString("general.architecture", "gemma4");
  writer.AddU32("gemma4.block_count", 2);
  writer.AddF32("gemma4.rope.freq_base", 1e6f);
  writer.AddBools("gemma4.attention.sliding_window_pattern", {true, false});
  writer.AddStrings("tokenizer.ggml.tokens", std::vector<std::string_view>{"<pad>", "", "a b"});
  writer.AddI32s("tokenizer.ggml.token_type", std::vector<int32_t>{3, -1, 1});
  writer.AddTensor("token_embd.weight", DType::kQ4_0, std::vector<int64_t>{3, 64});
  writer.AddTensor("output_norm.weight", DType::kF32, std::vector<int64_t>{5});
  writer.AddTensor("blk.0.ffn_down_exps.weight", DType::kQ6_K, std::vector<int64_t>{2, 3, 256});
  return writer;
}

TEST(GgufHeader, GivesWhatWasWritten) {
  const std::string file = FileOf(SmallFile());
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.error().message;
  const auto& metadata = header->metadata;
  EXPECT_THAT(*metadata.at("general.architecture").Strings(), ElementsAre("gemma4"));
  EXPECT_THAT(*metadata.at("gemma4.block_count").Ints(), ElementsAre(2));
  EXPECT_THAT(*metadata.at("gemma4.block_count").Numbers(), ElementsAre(2.0));
  EXPECT_THAT(*metadata.at("gemma4.rope.freq_base").Numbers(), ElementsAre(1e6));
  EXPECT_FALSE(metadata.at("gemma4.rope.freq_base").Ints());
  EXPECT_THAT(*metadata.at("gemma4.attention.sliding_window_pattern").Ints(), ElementsAre(1, 0));
  EXPECT_THAT(*metadata.at("tokenizer.ggml.tokens").Strings(), ElementsAre("<pad>", "", "a b"));
  EXPECT_THAT(*metadata.at("tokenizer.ggml.token_type").Ints(), ElementsAre(3, -1, 1));
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].dtype, DType::kQ4_0);
  EXPECT_THAT(header->tensors[0].shape, ElementsAre(3, 64));
  EXPECT_THAT(header->tensors[2].shape, ElementsAre(2, 3, 256));
  EXPECT_EQ(header->tensors[2].end - header->tensors[2].begin, 6u * 210);
}

TEST(GgufHeader, EveryCutFileIsRefused) {
  const std::string file = FileOf(SmallFile());
  const uint64_t end = Parse(file)->tensors.back().end;
  for (size_t length = 0; length < end; ++length) {
    ASSERT_NE(ErrorOf(file.substr(0, length)), "") << length;
  }
  EXPECT_EQ(ErrorOf(file.substr(0, end)), "");
}

// Any flipped bit is refused or changes values only: what parses stays inside the file.
TEST(GgufHeader, NoFlippedBitLeadsOutOfTheFile) {
  const std::string good = FileOf(SmallFile());
  const size_t header_bytes = SmallFile().Header().size();
  for (size_t bit = 0; bit < header_bytes * 8; ++bit) {
    std::string file = good;
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ 1 << bit % 8);
    const auto header = Parse(file);
    if (!header.ok()) continue;
    for (const GgufTensor& tensor : header->tensors) {
      ASSERT_LE(tensor.begin, tensor.end);
      ASSERT_LE(tensor.end, file.size());
      ASSERT_EQ(static_cast<uint64_t>(TensorView{nullptr, tensor.dtype, tensor.shape}.num_bytes()),
                tensor.end - tensor.begin);
    }
    for (const auto& [key, value] : header->metadata) {
      if (const auto strings = value.Strings()) {
        for (const std::string_view text : *strings) {
          ASSERT_GE(text.data(), file.data());
          ASSERT_LE(text.data() + text.size(), file.data() + file.size());
        }
      }
    }
  }
}

// `offset` bytes behind the n-th occurrence of `after`.
template <typename T>
std::string With(std::string file, const std::string& after, size_t offset, T value) {
  const size_t at = file.find(after);
  EXPECT_NE(at, std::string::npos);
  std::memcpy(file.data() + at + after.size() + offset, &value, sizeof(value));
  return file;
}

TEST(GgufHeader, AbsurdCountsAndDimsAreRefused) {
  const std::string file = FileOf(SmallFile());
  EXPECT_THAT(ErrorOf(With(file, "GGUF", 4, uint64_t{1} << 40)), HasSubstr("claims"));
  EXPECT_THAT(ErrorOf(With(file, "GGUF", 12, uint64_t{1} << 63)), HasSubstr("claims"));
  // Behind a tensor's name: number of dims, dims, type, offset.
  const std::string name = "token_embd.weight";
  EXPECT_THAT(ErrorOf(With(file, name, 0, uint32_t{0})), HasSubstr("has 0 dims"));
  EXPECT_THAT(ErrorOf(With(file, name, 0, uint32_t{5})), HasSubstr("has 5 dims"));
  EXPECT_THAT(ErrorOf(With(file, name, 4, uint64_t{1} << 40)),
              HasSubstr("more than the file can hold"));
  EXPECT_THAT(ErrorOf(With(file, name, 4, uint64_t{0})), HasSubstr("a dim of 0"));
  EXPECT_THAT(ErrorOf(With(file, name, 12, ~uint64_t{0})),
              HasSubstr("more than the file can hold"));
  EXPECT_THAT(ErrorOf(With(file, "tokenizer.ggml.tokens", 8, ~uint64_t{0})), HasSubstr("ends"));
  EXPECT_THAT(ErrorOf(With(file, "tokenizer.ggml.token_type", 8, ~uint64_t{0})),
              HasSubstr("claims"));
  EXPECT_THAT(ErrorOf(With(file, "tokenizer.ggml.tokens", 16, ~uint64_t{0})), HasSubstr("ends"));
}

TEST(GgufHeader, TypesAndBlocksAreNamedInErrors) {
  const std::string file = FileOf(SmallFile());
  const std::string name = "token_embd.weight";
  EXPECT_THAT(ErrorOf(With(file, name, 20, uint32_t{10})),
              HasSubstr("'token_embd.weight' is Q2_K"));
  EXPECT_THAT(ErrorOf(With(file, name, 20, uint32_t{99})), HasSubstr("unknown type 99"));
  EXPECT_THAT(ErrorOf(With(file, name, 4, uint64_t{48})),
              HasSubstr("rows of 48, no multiple of the 32 elements of a Q4_0 block"));
  EXPECT_THAT(ErrorOf(With(file, "gemma4.block_count", 0, uint32_t{13})),
              HasSubstr("unknown value type 13"));
  EXPECT_THAT(ErrorOf(With(file, "tokenizer.ggml.tokens", 4, uint32_t{9})),
              HasSubstr("nests arrays"));
}

TEST(GgufHeader, TensorsMayNotOverlapNorLieElsewhere) {
  const std::string file = FileOf(SmallFile());
  // output_norm has one dim: its offset is 16 bytes behind the name.
  EXPECT_THAT(ErrorOf(With(file, "output_norm.weight", 16, uint64_t{32})), HasSubstr("overlap"));
  EXPECT_THAT(ErrorOf(With(file, "output_norm.weight", 16, uint64_t{33})),
              HasSubstr("no multiple of the alignment"));
  EXPECT_THAT(ErrorOf(With(file, "output_norm.weight", 16, ~uint64_t{31})),
              HasSubstr("behind the end of the file"));
}

TEST(GgufHeader, OtherFilesAreCalledWhatTheyAre) {
  const std::string file = FileOf(SmallFile());
  EXPECT_THAT(ErrorOf(With(file, "", 0, uint32_t{0})), HasSubstr("not a GGUF file"));
  EXPECT_THAT(ErrorOf(With(file, "GGUF", 0, uint32_t{1})), HasSubstr("version 1"));
  EXPECT_THAT(ErrorOf(With(file, "GGUF", 0, uint32_t{3} << 24)), HasSubstr("big-endian"));
  GgufWriter twice;
  twice.AddU32("a", 1);
  twice.AddU32("a", 2);
  EXPECT_THAT(ErrorOf(FileOf(twice)), HasSubstr("'a' is there twice"));
  GgufWriter odd;
  odd.AddU32("general.alignment", 24);
  EXPECT_THAT(ErrorOf(FileOf(odd)), HasSubstr("general.alignment"));
}

}  // namespace
}  // namespace lapidary
