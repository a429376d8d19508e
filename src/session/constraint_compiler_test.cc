// Compiled grammars have a bound of bytes.
#include "session/constraint_compiler.h"

#include <gtest/gtest.h>

#include "session/model_files.h"

namespace lapidary {
namespace {

using grammar::Constraint;

class ConstraintCompilerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    files_ = new ModelFiles(ModelFiles::Open(LAPIDARY_SOURCE_DIR "/models/pebble-e").value());
  }
  static void TearDownTestSuite() { delete files_; }

  static ConstraintCompiler Compiler(size_t max_bytes) {
    return {files_->text, files_->description.plan.vocab_size, max_bytes};
  }
  static Constraint Schema(int number) {
    return {.kind = Constraint::Kind::kJsonSchema,
            .text = fmt::format(R"({{"type": "object", "properties": {{"n{}": {{"type": "integer",
                                "multipleOf": {}}}, "s": {{"type": "string",
                                "pattern": "^[a-c]{{2,90}}x{{{}}}$"}}}},
                                "required": ["s"]}})",
                                number, 9'000 + number, 1 + number)};
  }
  // The masks of an answer, so that the grammar grows.
  static void Use(std::shared_ptr<const grammar::CompiledGrammar> grammar) {
    grammar::Matcher matcher(grammar);
    std::vector<uint32_t> words(grammar->vocabulary().num_words());
    for (int token = 0; token < 30 && !matcher.IsTerminated(); ++token) {
      ASSERT_TRUE(matcher.FillMask(words).ok());
      int32_t last = 0;
      for (int32_t id = 0; id < grammar->vocabulary().num_tokens(); ++id) {
        if ((words[id / 32] >> (id % 32) & 1) != 0) last = id;
      }
      ASSERT_TRUE(*matcher.Accept(last));
    }
  }

  static ModelFiles* files_;
};

ModelFiles* ConstraintCompilerTest::files_ = nullptr;

TEST_F(ConstraintCompilerTest, DifferentSchemasStayWithinTheirBytesAndTheLatestAreKept) {
  constexpr size_t kMaxBytes = size_t{3} << 20;
  ConstraintCompiler compiler = Compiler(kMaxBytes);
  for (int number = 0; number < 36; ++number) {
    Use(compiler.Compile(Schema(number)).value());
    EXPECT_LE(compiler.stats().num_bytes, kMaxBytes);
  }
  const GrammarStats stats = compiler.stats();
  EXPECT_EQ(stats.num_misses, 36u);
  EXPECT_GT(stats.num_evictions, 0u);
  EXPECT_EQ(stats.num_evictions + stats.num_grammars, 36u);
  EXPECT_GT(stats.num_grammars, 0u);
  EXPECT_NE(compiler.Find(Schema(35)), nullptr);
  EXPECT_EQ(compiler.Find(Schema(0)), nullptr);
}

TEST_F(ConstraintCompilerTest, AGrammarInUseIsNotGivenUpAndNoneBeginsWhileThoseInUseTakeAll) {
  constexpr size_t kMaxBytes = size_t{2} << 20;
  ConstraintCompiler compiler = Compiler(kMaxBytes);
  std::vector<std::shared_ptr<const grammar::CompiledGrammar>> in_use;
  std::optional<Error> refused;
  for (int number = 0; number < 200 && !refused; ++number) {
    auto compiled = compiler.Compile(Schema(number));
    if (!compiled.ok()) {
      refused = compiled.error();
      break;
    }
    Use(*compiled);
    in_use.push_back(*compiled);
  }
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, ErrorKind::kBusy);
  EXPECT_EQ(compiler.Find(Schema(0)), in_use[0]);
  EXPECT_EQ(compiler.stats().num_evictions, 0u);
  in_use.clear();
  EXPECT_TRUE(compiler.Compile(Schema(1'000)).ok());
  EXPECT_LE(compiler.stats().num_bytes, kMaxBytes);
}

}  // namespace
}  // namespace lapidary
