#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "base/json_fields.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

// A file of this header text and so many bytes of data.
std::string File(std::string_view header, size_t data_bytes) {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  file += header;
  for (size_t idx = 0; idx < data_bytes; ++idx) file += static_cast<char>(idx);
  return file;
}

Result<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensors(std::as_bytes(std::span<const char>(file)), "x.safetensors");
}

std::string ProblemOf(const std::string& file) {
  const auto header = Parse(file);
  return header.ok() ? "none" : header.error().message;
}

// The problem of a file of one tensor 't' given by its JSON, with 12 bytes of data.
std::string ProblemOfTensor(std::string_view tensor_json) {
  return ProblemOf(File(fmt::format(R"({{"t":{}}})", tensor_json), 12));
}

constexpr char kGood[] = R"({"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]})";

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  std::vector<SafetensorsEntry> entries = {
      {.name = "b", .dtype = DType::kBF16, .shape = {2, 3}},
      {.name = "a.weight", .dtype = DType::kF32, .shape = {5}},
      {.name = "empty", .dtype = DType::kI64, .shape = {4, 0}},
      {.name = "scalar \u00e9 \" \\", .dtype = DType::kU8, .shape = {}},
  };
  std::string file = MakeSafetensorsHeader(entries, {{"format", "pt"}});
  EXPECT_EQ(file.size() % 8, 0u);
  file.resize(file.size() + 12 + 20 + 0 + 1);
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->metadata.at("format"), "pt");
  ASSERT_EQ(header->entries.size(), entries.size());
  for (size_t idx = 0; idx < entries.size(); ++idx) {
    EXPECT_EQ(header->entries[idx].name, entries[idx].name);
    EXPECT_EQ(header->entries[idx].dtype, entries[idx].dtype);
    EXPECT_EQ(header->entries[idx].shape, entries[idx].shape);
    EXPECT_EQ(header->entries[idx].begin, entries[idx].begin);
    EXPECT_EQ(header->entries[idx].end, entries[idx].end);
  }
  EXPECT_EQ(header->entries.back().end, file.size());
}

TEST(Safetensors, AcceptsAHeaderThatEndsTheFile) {
  EXPECT_EQ(ProblemOf(File("{}", 0)), "none");
  EXPECT_EQ(ProblemOf(File(R"({"e":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0)),
            "none");
  EXPECT_EQ(ProblemOf(File(R"({"__metadata__":{"k":"v"}}   )", 0)), "none");
}

TEST(Safetensors, AcceptsEmptyTensorsBetweenOthers) {
  EXPECT_EQ(ProblemOf(File(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                           R"("b":{"dtype":"F32","shape":[0,7],"data_offsets":[3,3]},)"
                           R"("c":{"dtype":"F32","shape":[7,0],"data_offsets":[3,3]},)"
                           R"("d":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
                           5)),
            "none");
}

TEST(Safetensors, RefusesFilesShorterThanTheirHeader) {
  for (int size = 0; size < 8; ++size) {
    EXPECT_THAT(ProblemOf(std::string(size, '\0')), HasSubstr("too few for a safetensors file"));
  }
  std::string file = File("{}", 0);
  for (const uint64_t length :
       {uint64_t{3}, uint64_t{1} << 20, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7}) {
    std::memcpy(file.data(), &length, 8);
    EXPECT_THAT(ProblemOf(file), HasSubstr("does not fit a file of 10 bytes"));
  }
}

TEST(Safetensors, RefusesAHeaderThatIsNotAnObjectOfTensors) {
  for (const char* header : {"", "{", "not json", "{}{}", "{\"a\":\x80}"}) {
    EXPECT_THAT(ProblemOf(File(header, 0)),
                HasSubstr("x.safetensors: safetensors header: not valid JSON"));
  }
  for (const char* header : {"[]", "3", "null", "\"x\""}) {
    EXPECT_THAT(ProblemOf(File(header, 0)), HasSubstr("not an object of tensors"));
  }
  for (const char* tensor : {"3", "null", "[]", "\"F32\""}) {
    EXPECT_THAT(ProblemOfTensor(tensor), HasSubstr("tensor 't': expected a JSON object"));
  }
  EXPECT_THAT(ProblemOf(File(R"({"__metadata__":[]})", 0)), HasSubstr("__metadata__"));
  EXPECT_THAT(ProblemOf(File("{\"t\":" + std::string(1000, '['), 0)), HasSubstr("nested deeper"));
}

TEST(Safetensors, RefusesNamesThatOccurTwice) {
  EXPECT_THAT(ProblemOf(File(fmt::format(R"({{"t":{0},"t":{0}}})", kGood), 12)),
              HasSubstr("'t' is there twice"));
  EXPECT_THAT(
      ProblemOfTensor(R"({"dtype":"BF16","dtype":"F32","shape":[2,3],"data_offsets":[0,12]})"),
      HasSubstr("'dtype' is there twice"));
}

TEST(Safetensors, RefusesUnknownDtypes) {
  for (const char* dtype : {"\"F4\"", "\"\"", "\"bf16\""}) {
    EXPECT_THAT(
        ProblemOfTensor(fmt::format(R"({{"dtype":{},"shape":[6],"data_offsets":[0,12]}})", dtype)),
        HasSubstr("tensor 't': unknown dtype"));
  }
  EXPECT_THAT(ProblemOfTensor(R"({"dtype":3,"shape":[6],"data_offsets":[0,12]})"),
              HasSubstr("dtype must be a string"));
  EXPECT_THAT(ProblemOfTensor(R"({"shape":[6],"data_offsets":[0,12]})"), HasSubstr("dtype"));
}

TEST(Safetensors, RefusesShapesThatAreNoCounts) {
  for (const char* shape : {"[-1]", "[2.0]", "[\"2\"]", "[null]", "[18446744073709551615]"}) {
    EXPECT_THAT(
        ProblemOfTensor(fmt::format(R"({{"dtype":"U8","shape":{},"data_offsets":[0,12]}})", shape)),
        HasSubstr("shape holds something that is not a count"))
        << shape;
  }
  for (const char* shape : {"null", "12", "{}", "[1,1,1,1,1,1,1,1,12]"}) {
    EXPECT_THAT(
        ProblemOfTensor(fmt::format(R"({{"dtype":"U8","shape":{},"data_offsets":[0,12]}})", shape)),
        HasSubstr("shape must be a list of at most 8 numbers"))
        << shape;
  }
  EXPECT_EQ(ProblemOfTensor(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,12],"data_offsets":[0,12]})"),
            "none");
}

TEST(Safetensors, RefusesOffsetsThatAreNoCounts) {
  for (const char* offsets : {"null", "[]", "[0]", "[0,12,12]", "[-1,11]", "[0.0,12]", "[0,\"12\"]",
                              "{\"0\":0,\"1\":12}"}) {
    EXPECT_THAT(
        ProblemOfTensor(fmt::format(R"({{"dtype":"U8","shape":[12],"data_offsets":{}}})", offsets)),
        HasSubstr("data_offsets must be two counts"))
        << offsets;
  }
}

TEST(Safetensors, RefusesShapesThatDoNotFillTheirBytes) {
  for (const char* tensor : {
           R"({"dtype":"BF16","shape":[2,2],"data_offsets":[0,12]})",
           R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,12]})",
           R"({"dtype":"U8","shape":[],"data_offsets":[0,12]})",
           R"({"dtype":"U8","shape":[0],"data_offsets":[0,12]})",
           R"({"dtype":"U8","shape":[12],"data_offsets":[12,0]})",
           // Products that wrap around 2^64: to 0, to 12, and dims that wrap with the element size.
           R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})",
           R"({"dtype":"U8","shape":[4611686018427387907,4],"data_offsets":[0,12]})",
           R"({"dtype":"F32","shape":[4611686018427387907],"data_offsets":[0,12]})",
           R"({"dtype":"U8","shape":[4611686018427387904,2,0],"data_offsets":[0,0]})",
           R"({"dtype":"U8","shape":[9223372036854775807,9223372036854775807,0],)"
           R"("data_offsets":[0,0]})",
       }) {
    EXPECT_THAT(ProblemOfTensor(tensor), HasSubstr("does not fill data_offsets")) << tensor;
  }
}

TEST(Safetensors, RefusesOverlapsHolesAndBytesLeftOver) {
  const auto two = [](int a_begin, int a_end, int b_begin, int b_end) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                       R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                       a_end - a_begin, a_begin, a_end, b_end - b_begin, b_begin, b_end);
  };
  EXPECT_EQ(ProblemOf(File(two(0, 6, 6, 12), 12)), "none");
  EXPECT_EQ(ProblemOf(File(two(6, 12, 0, 6), 12)), "none");
  EXPECT_THAT(ProblemOf(File(two(0, 6, 5, 12), 12)), HasSubstr("tensors overlap"));
  EXPECT_THAT(ProblemOf(File(two(0, 6, 0, 6), 6)), HasSubstr("tensors overlap"));
  EXPECT_THAT(ProblemOf(File(two(0, 6, 0, 12), 12)), HasSubstr("tensors overlap"));
  EXPECT_THAT(ProblemOf(File(two(0, 6, 7, 12), 12)), HasSubstr("hole in the data"));
  EXPECT_THAT(ProblemOf(File(two(1, 6, 6, 12), 12)), HasSubstr("hole in the data"));
  EXPECT_THAT(ProblemOf(File(two(0, 6, 6, 12), 13)), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(ProblemOf(File("{}", 5)), HasSubstr("5 bytes after the last tensor"));
  EXPECT_THAT(ProblemOf(File(two(0, 6, 6, 12), 11)), HasSubstr("ends 1 bytes past the end"));
  EXPECT_THAT(ProblemOf(File(two(0, 6, 6, 12), 0)), HasSubstr("past the end"));
}

TEST(Safetensors, EndsQuicklyOnAHeaderOfManyTensors) {
  std::string header = "{";
  for (int idx = 0; idx < 100000; ++idx) {
    header += fmt::format(R"("t{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}},)", idx, idx,
                          idx + 1);
  }
  header.back() = '}';
  EXPECT_EQ(ProblemOf(File(header, 100000)), "none");
}

TEST(Safetensors, KeepsMessagesShortWhateverTheNames) {
  const std::string name(1 << 20, 'x');
  EXPECT_LT(ProblemOf(File(fmt::format(R"({{"{}":{{"dtype":"{}"}}}})", name, name), 0)).size(),
            1000u);
}

// Whatever parses must describe the file: inside it, without overlap, in shapes that fit.
void CheckSound(const std::string& file) {
  const auto header = Parse(file);
  if (!header.ok()) {
    ASSERT_FALSE(header.error().message.empty());
    return;
  }
  uint64_t covered = 0;
  uint64_t previous_end = 0;
  for (const SafetensorsEntry& entry : header->entries) {
    ASSERT_LE(entry.begin, entry.end);
    ASSERT_LE(entry.end, file.size());
    ASSERT_GE(entry.begin, previous_end);
    const TensorView view{nullptr, entry.dtype, entry.shape};
    ASSERT_EQ(static_cast<uint64_t>(view.num_bytes()), entry.end - entry.begin);
    covered += entry.end - entry.begin;
    previous_end = entry.end;
  }
  ASSERT_LE(covered, file.size());
}

TEST(Safetensors, TruncatedAndDamagedFilesNeverYieldAnUnsoundHeader) {
  std::vector<SafetensorsEntry> entries = {
      {.name = "layers.0.a", .dtype = DType::kBF16, .shape = {4, 3}},
      {.name = "layers.0.b", .dtype = DType::kF32, .shape = {2}},
      {.name = "layers.0.c", .dtype = DType::kF16, .shape = {0, 3}},
      {.name = "d", .dtype = DType::kU8, .shape = {1}}};
  std::string valid = MakeSafetensorsHeader(entries, {{"format", "pt"}});
  valid.resize(valid.size() + 24 + 8 + 1, 'd');
  ASSERT_TRUE(Parse(valid).ok());
  for (size_t size = 0; size < valid.size(); ++size) {
    ASSERT_FALSE(Parse(valid.substr(0, size)).ok()) << size;
  }
  std::mt19937 random(20260823);
  for (int round = 0; round < 6000; ++round) {
    std::string damaged = valid;
    for (int change = 1 + random() % 3; change > 0; --change) {
      const size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0:
          damaged[at] ^= static_cast<char>(1 << random() % 8);
          break;
        case 1:
          damaged[at] = static_cast<char>('0' + random() % 10);
          break;
        case 2:
          damaged.erase(at, 1 + random() % 4);
          break;
        default:
          damaged.insert(at, 1, "{}[],:\"0-9e."[random() % 12]);
          break;
      }
      if (damaged.empty()) damaged = "x";
    }
    ASSERT_NO_FATAL_FAILURE(CheckSound(damaged)) << "round " << round;
  }
}

}  // namespace
}  // namespace lapidary
