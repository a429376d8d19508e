#include "bench/target_server.h"

#include <gtest/gtest.h>

namespace lapidary::bench {
namespace {

TEST(ReadModels, FindsTheNameAndTheVocabulary) {
  const ServerInfo info =
      ReadModels(R"({"data":[{"id":"m","meta":{"n_vocab":262144}},{"id":"n"}]})").value();
  EXPECT_EQ(info.model, "m");
  EXPECT_EQ(info.vocab_size, 262144);
}

TEST(ReadModels, TheVocabularyMayBeMissing) {
  EXPECT_EQ(ReadModels(R"({"data":[{"id":"m"}]})").value().vocab_size, std::nullopt);
  EXPECT_EQ(ReadModels(R"({"data":[{"id":"m","meta":{"n_vocab":-1}}]})").value().vocab_size,
            std::nullopt);
}

TEST(ReadModels, RefusesWhatIsNoList) {
  for (const char* body : {"", "[]", "{}", R"({"data":[]})", R"({"data":[7]})", R"({"data":{}})"}) {
    EXPECT_FALSE(ReadModels(body).ok()) << body;
  }
}

TEST(MakeRequest, AsksForAStreamOfTheIds) {
  const TargetServer server(HttpClient(ParseBaseUrl("http://127.0.0.1:1").value()), {});
  RequestForm form;
  form.model = "m";
  form.extra = {{"temperature", 0.0}, {"ignore_eos", false}};
  const LoadRequest request = server.MakeRequest(form, {.ids = {5, 6, 7}, .output_len = 9}).value();
  EXPECT_EQ(request.call.path, "/v1/completions");
  EXPECT_EQ(request.prompt_tokens, 3);
  const Json body = ParseJson(request.call.body, "body").value();
  EXPECT_EQ(body["prompt"], Json({5, 6, 7}));
  EXPECT_EQ(body["max_tokens"], 9);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(body["temperature"], 0.0);
  EXPECT_EQ(body["ignore_eos"], false);  // the extra members win
}

}  // namespace
}  // namespace lapidary::bench
