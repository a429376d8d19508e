#include "base/json.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <string>

namespace {

size_t num_allocations = 0;

}  // namespace

// Not inlined, or the compiler sees malloc freed by an operator delete that it does not know.
[[gnu::noinline]] void* operator new(size_t num_bytes) {
  ++num_allocations;
  if (void* block = std::malloc(num_bytes)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace lapidary {
namespace {

template <typename Json>
class JsonTest : public testing::Test {};
using BothOrders = testing::Types<nlohmann::json, nlohmann::ordered_json>;
TYPED_TEST_SUITE(JsonTest, BothOrders);

template <typename Json>
Json Tree(int depth) {
  Json tree = {
      {"list", Json::array({1, "a text that is longer than a string has room for", nullptr})},
      {"empty", Json::object()},
      {"bytes", Json::binary({1, 2, 3})}};
  for (int idx = 0; depth > 0 && idx < 4; ++idx) {
    tree[std::to_string(idx)] = Tree<Json>(depth - 1);
    tree["list"].push_back(Tree<Json>(depth - 1));
  }
  return tree;
}

TYPED_TEST(JsonTest, DestroyingATreeTakesNoMemory) {
  for (const int depth : {0, 1, 4}) {
    auto tree = std::make_optional(Tree<TypeParam>(depth));
    const size_t before = num_allocations;
    tree.reset();
    EXPECT_EQ(num_allocations, before) << depth;
  }
}

TYPED_TEST(JsonTest, DestroyingADeepTreeTakesNoStack) {
  constexpr int kDepth = 1'000'000;
  for (const bool is_object : {false, true}) {
    std::string text;
    for (int level = 0; level < kDepth; ++level) text += is_object ? "{\"a\":" : "[1,";
    text += "2";
    text += std::string(kDepth, is_object ? '}' : ']');
    auto tree = std::make_optional(TypeParam::parse(text));
    const size_t before = num_allocations;
    tree.reset();
    EXPECT_EQ(num_allocations, before);
  }
}

TYPED_TEST(JsonTest, CopiesStayWhenTheirOriginalGoes) {
  auto tree = std::make_optional(Tree<TypeParam>(3));
  const TypeParam copy = *tree;
  const std::string text = copy.dump(-1, ' ', false, TypeParam::error_handler_t::replace);
  tree.reset();
  EXPECT_EQ(copy.dump(-1, ' ', false, TypeParam::error_handler_t::replace), text);
}

// One translation unit that saw the library alone would have other code for the same function.
TEST(JsonIncludesTest, AllGoThroughTheHeaderHere) {
  const std::filesystem::path root = LAPIDARY_SOURCE_DIR;
  for (const char* folder : {"src", "apps", "tests", "fuzz", "python"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string suffix = entry.path().extension();
      if (suffix != ".h" && suffix != ".cc" && suffix != ".cu" && suffix != ".cuh") continue;
      if (entry.path() == root / "src/base/json.h") continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        EXPECT_NE(line, "#include <nlohmann/json.hpp>") << entry.path();
      }
    }
  }
}

}  // namespace
}  // namespace lapidary
