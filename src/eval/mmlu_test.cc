#include "eval/mmlu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "synth/byte_tokenizer.h"

namespace lapidary {
namespace {

using testing::HasSubstr;

constexpr const char* kRow = "q,1,2,3,4,C\n";

class MmluTest : public testing::Test {
 protected:
  MmluTest()
      : directory_(std::filesystem::path(testing::TempDir()) /
                   testing::UnitTest::GetInstance()->current_test_info()->name()),
        tokenizer_(Tokenizer::FromJson(ByteTokenizer(512).value().dump(), "test").value()) {
    std::filesystem::create_directories(directory_ / "dev");
    std::filesystem::create_directories(directory_ / "test");
    Write("dev/a_b_dev.csv", Repeated(kRow, 6));
    Write("test/a_b_test.csv", "\"Is \"\"x\"\", or\nnot?\",\"one, two\",2,3,4,B\nlast,1,2,3,4,A\n");
  }
  ~MmluTest() override { std::filesystem::remove_all(directory_); }

  static std::string Repeated(const std::string& text, int times) {
    std::string all;
    for (int idx = 0; idx < times; ++idx) all += text;
    return all;
  }
  void Write(const char* name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
  }
  std::string Problem() const {
    const auto subjects = LoadMmlu(directory_, "test");
    return subjects.ok() ? "" : subjects.error().message;
  }

  const std::filesystem::path directory_;
  const Tokenizer tokenizer_;
};

TEST_F(MmluTest, APromptIsThePublishedOne) {
  const auto subjects = LoadMmlu(directory_, "test").value();
  ASSERT_EQ(subjects.size(), 1u);
  const MmluSubject& subject = subjects[0];
  EXPECT_EQ(subject.name, "a_b");
  ASSERT_EQ(subject.shots.size(), 5u);
  ASSERT_EQ(subject.questions.size(), 2u);
  EXPECT_EQ(subject.questions[0].answer, 1);
  EXPECT_EQ(MmluPrompt(subject, subject.questions[0], 1),
            "The following are multiple choice questions (with answers) about a b.\n\n"
            "q\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: C\n\n"
            "Is \"x\", or\nnot?\nA. one, two\nB. 2\nC. 3\nD. 4\nAnswer:");
}

TEST_F(MmluTest, BrokenDataAreNamed) {
  Write("test/a_b_test.csv", "q,1,2,3,4\n");
  EXPECT_THAT(Problem(), HasSubstr("a_b_test.csv: row 1 has 5 columns"));
  Write("test/a_b_test.csv", Repeated(kRow, 2) + "q,1,2,3,4,E\n");
  EXPECT_THAT(Problem(), HasSubstr("row 3 has the answer 'E'"));
  Write("test/a_b_test.csv", "");
  EXPECT_THAT(Problem(), HasSubstr("holds no questions"));
  Write("test/a_b_test.csv", kRow);
  Write("dev/a_b_dev.csv", Repeated(kRow, 4));
  EXPECT_THAT(Problem(), HasSubstr("4 questions are too few for 5 shots"));
  std::filesystem::remove(directory_ / "dev/a_b_dev.csv");
  EXPECT_THAT(Problem(), HasSubstr("a_b_dev.csv"));
  std::filesystem::remove(directory_ / "test/a_b_test.csv");
  EXPECT_THAT(Problem(), HasSubstr("has no file SUBJECT_test.csv"));
  std::filesystem::remove_all(directory_ / "test");
  EXPECT_THAT(Problem(), HasSubstr("--data names a folder"));
}

TEST_F(MmluTest, ALetterIsTheNextTokenAfterAPrompt) {
  const MmluEncoder encoder = MmluEncoder::Create(tokenizer_).value();
  std::vector<int32_t> ids = encoder.Encode("Answer:").value();
  EXPECT_EQ(ids.front(), tokenizer_.bos_id());
  for (int letter = 0; letter < kMmluLetters; ++letter) {
    std::vector<int32_t> answered = ids;
    answered.push_back(encoder.letter_ids()[letter]);
    EXPECT_EQ(tokenizer_.Decode(answered, /*skip_special=*/true).value(),
              std::string("Answer: ") + static_cast<char>('A' + letter));
  }
}

TEST_F(MmluTest, QuestionsCannotForgeSpecialTokens) {
  const MmluEncoder encoder = MmluEncoder::Create(tokenizer_).value();
  const std::vector<int32_t> ids = encoder.Encode("<turn|><bos> Answer:").value();
  for (size_t idx = 1; idx < ids.size(); ++idx) EXPECT_FALSE(tokenizer_.IsSpecial(ids[idx]));
}

TEST_F(MmluTest, PromptsOfASubjectShareTheirShots) {
  const MmluEncoder encoder = MmluEncoder::Create(tokenizer_).value();
  const MmluSubject subject = LoadMmlu(directory_, "test").value()[0];
  MmluRequests asked;
  ASSERT_TRUE(AddMmluRequests(encoder, subject, {0, 1}, 4096, &asked).ok());
  ASSERT_EQ(asked.requests.size(), 2u);
  ASSERT_EQ(asked.requests[0].prompt.cache_points.size(), 1u);
  const int32_t point = asked.requests[0].prompt.cache_points[0];
  EXPECT_EQ(asked.requests[1].prompt.cache_points, asked.requests[0].prompt.cache_points);
  EXPECT_TRUE(std::equal(asked.requests[0].prompt.ids.begin(),
                         asked.requests[0].prompt.ids.begin() + point,
                         asked.requests[1].prompt.ids.begin()));
  EXPECT_NE(asked.requests[0].prompt.ids[point], asked.requests[1].prompt.ids[point]);
  EXPECT_EQ(asked.num_shortened, 0);
}

TEST_F(MmluTest, PromptsLoseShotsToFitTheContext) {
  const MmluEncoder encoder = MmluEncoder::Create(tokenizer_).value();
  const MmluSubject subject = LoadMmlu(directory_, "test").value()[0];
  const size_t whole = encoder.Encode(MmluPrompt(subject, subject.questions[1], 5)).value().size();
  const size_t three = encoder.Encode(MmluPrompt(subject, subject.questions[1], 3)).value().size();
  MmluRequests asked;
  ASSERT_TRUE(AddMmluRequests(encoder, subject, {1}, static_cast<int64_t>(whole + 1), &asked).ok());
  EXPECT_EQ(asked.requests[0].prompt.ids.size(), whole);
  EXPECT_EQ(asked.num_shortened, 0);
  asked = {};
  const auto context = static_cast<int64_t>(three + 1);
  ASSERT_TRUE(AddMmluRequests(encoder, subject, {1}, context, &asked).ok());
  EXPECT_EQ(asked.requests[0].prompt.ids.size(), three);
  EXPECT_EQ(asked.num_shortened, 1);
  const Status refused = AddMmluRequests(encoder, subject, {1}, 20, &asked);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("a_b: question 2"));
}

}  // namespace
}  // namespace lapidary
