#include "load/load_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace lapidary {
namespace {

using testing::HasSubstr;

std::string Set(std::string_view name, const std::string& text, LoadOptions* options) {
  const Status set = SetLoadField(name, text, options);
  return set.ok() ? "" : set.error().message;
}

TEST(LoadFields, AFieldGoesByTheSpellingsOfFlagsAndOfPython) {
  for (const char* name : {"gpu-memory-utilization", "gpu_memory_utilization"}) {
    LoadOptions options;
    EXPECT_EQ(Set(name, "0.5", &options), "");
    EXPECT_EQ(options.cuda.memory.share, 0.5);
  }
  EXPECT_EQ(FindLoadField("no-such-field"), nullptr);
}

TEST(LoadFields, EveryKindOfValueIsRead) {
  LoadOptions options;
  EXPECT_EQ(Set("threads", "7", &options), "");
  EXPECT_EQ(Set("gpu-memory", "16000000000", &options), "");
  EXPECT_EQ(Set("enforce-eager", "true", &options), "");
  EXPECT_EQ(Set("quantization", "q4_0", &options), "");
  EXPECT_EQ(Set("head-bits", "6", &options), "");
  EXPECT_EQ(options.num_threads, 7);
  EXPECT_EQ(options.cuda.memory.cap, 16'000'000'000);
  EXPECT_FALSE(options.cuda.use_graphs);
  EXPECT_EQ(options.quantisation, DType::kQ4_0);
  EXPECT_EQ(options.head_bits, 6);
  EXPECT_EQ(Set("enforce_eager", "false", &options), "");
  EXPECT_TRUE(options.cuda.use_graphs);
}

TEST(LoadFields, SwitchesAreWrittenAsPeopleDo) {
  for (const char* text : {"true", "on", "yes", "1"}) {
    LoadOptions options;
    EXPECT_EQ(Set("fast-math", text, &options), "");
    EXPECT_TRUE(options.fast_math);
  }
  LoadOptions options;
  options.fast_math = true;
  for (const char* text : {"false", "off", "no", "0"})
    EXPECT_EQ(Set("fast-math", text, &options), "");
  EXPECT_FALSE(options.fast_math);
}

TEST(LoadFields, BytesAreWrittenAsPeopleDo) {
  LoadOptions options;
  for (const auto& [text, num_bytes] : {std::pair<const char*, int64_t>{"7", 7},
                                        {"16GB", 16'000'000'000},
                                        {"2KiB", 2048},
                                        {"1TiB", int64_t{1} << 40}}) {
    EXPECT_EQ(Set("gpu-memory", text, &options), "") << text;
    EXPECT_EQ(options.cuda.memory.cap, num_bytes) << text;
  }
  for (const char* text : {"", "GB", "-1", "0", "1i", "1PB", "99999999999999TB", "1GBx"}) {
    EXPECT_NE(Set("gpu-memory", text, &options), "") << text;
  }
}

TEST(LoadFields, ValuesThatAreNoneAreRefusedAndChangeNothing) {
  LoadOptions options;
  EXPECT_EQ(Set("threads", "2000", &options), "threads must be a whole number from 0 to 1024");
  EXPECT_THAT(Set("threads", "7x", &options), HasSubstr("whole number"));
  EXPECT_THAT(Set("gpu_memory_utilization", "nan", &options), HasSubstr("number from 0.01 to 1"));
  EXPECT_THAT(Set("gpu-memory", "0", &options), HasSubstr("at least 1"));
  EXPECT_THAT(Set("fast-math", "maybe", &options), HasSubstr("true or false"));
  EXPECT_THAT(Set("ple", "disk", &options), HasSubstr("one of device, host"));
  EXPECT_THAT(Set("nonsense", "1", &options), HasSubstr("no option nonsense"));
  EXPECT_EQ(options.num_threads, LoadOptions().num_threads);
  EXPECT_EQ(options.cuda.memory.share, LoadOptions().cuda.memory.share);
}

TEST(LoadFields, DefaultsThatHelpTellsAreThoseOfTheOptions) {
  std::set<std::string_view> names;
  for (const LoadField& field : LoadFields()) {
    EXPECT_TRUE(names.insert(field.name()).second) << field.flag;
    if (field.default_text.empty()) continue;
    LoadOptions options;
    EXPECT_EQ(Set(field.name(), field.default_text, &options), "");
    const LoadOptions defaults;
    EXPECT_EQ(options.num_threads, defaults.num_threads);
    EXPECT_EQ(options.num_ranks, defaults.num_ranks);
    EXPECT_EQ(options.numa, defaults.numa);
    EXPECT_EQ(options.format, defaults.format);
    EXPECT_EQ(options.cuda.ple_placement, defaults.cuda.ple_placement);
    EXPECT_EQ(options.cuda.memory.share, defaults.cuda.memory.share);
  }
}

}  // namespace
}  // namespace lapidary
