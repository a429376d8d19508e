// A server within a program: lapidary/server.h.
#include "lapidary/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace {

using lapidary::InvalidInput;
using lapidary::Server;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::chrono::milliseconds kLong{60'000};

std::vector<std::string> Arguments(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {LAPIDARY_SOURCE_DIR "/models/pebble-e",
                                        "--port=0",
                                        "--device=cpu",
                                        "--max-model-len=512",
                                        "--log-level=warning",
                                        "--access-log=off"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A connection to the server that has sent a request.
class Client {
 public:
  Client(int port, const std::string& head, const std::string& body = "") {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    is_connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    const std::string request =
        head + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
        "\r\n\r\n" + body;
    if (is_connected_) send(socket_, request.data(), request.size(), MSG_NOSIGNAL);
  }
  ~Client() { close(socket_); }

  bool is_connected() const { return is_connected_; }
  // What has come once `text` is among it, or all there is.
  std::string ReadUntil(const std::string& text) {
    char buffer[4096];
    while (answer_.find(text) == std::string::npos) {
      const ssize_t size = recv(socket_, buffer, sizeof(buffer), 0);
      if (size <= 0) break;
      answer_.append(buffer, static_cast<size_t>(size));
    }
    return answer_;
  }
  std::string ReadAll() { return ReadUntil(std::string(1, '\0')); }

 private:
  int socket_ = -1;
  bool is_connected_ = false;
  std::string answer_;
};

std::string Get(const Server& server, const std::string& path) {
  return Client(server.port(), "GET " + path).ReadAll();
}

constexpr const char* kEndless =
    R"({"prompt": "Once", "stream": true, "ignore_eos": true, "max_tokens": 400})";

template <typename F>
std::string RefusalOf(F call) {
  try {
    call();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST(InProcessServer, AnswersUnderItsUrlAndTellsWhatItDoes) {
  const Server server(Arguments({"--served-model-name=a,b", "--max-num-seqs=3"}));
  EXPECT_EQ(server.url(), "http://127.0.0.1:" + std::to_string(server.port()));
  EXPECT_EQ(server.model_names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_THAT(Get(server, "/ready"), StartsWith("HTTP/1.1 200"));
  const std::string answer =
      Client(server.port(), "POST /v1/chat/completions",
             R"({"messages": [{"role": "user", "content": "What is 48 + 17?"}], "temperature": 0})")
          .ReadAll();
  EXPECT_THAT(answer, HasSubstr("48 + 17 = 65"));
  const lapidary::ServerStats stats = server.stats();
  EXPECT_GT(stats.num_prompt_tokens, 5u);
  EXPECT_GT(stats.num_output_tokens, 5u);
  EXPECT_EQ(stats.max_model_len, 512);
  EXPECT_EQ(stats.max_num_seqs, 3);
  EXPECT_GT(stats.block_size, 0);
  EXPECT_GT(stats.num_blocks, 0);
}

TEST(InProcessServer, DrainsAsTheProgramDoesAtSigterm) {
  Server server(Arguments({"--drain-delay=600"}));
  Client stream(server.port(), "POST /v1/completions", kEndless);
  EXPECT_THAT(stream.ReadUntil("data: "), StartsWith("HTTP/1.1 200"));
  server.Drain();
  while (Get(server, "/ready").starts_with("HTTP/1.1 200")) {
  }
  EXPECT_THAT(Get(server, "/health"), StartsWith("HTTP/1.1 200"));
  EXPECT_FALSE(server.WaitFor(std::chrono::milliseconds(1)));
  server.Drain();  // as a second signal: the delay is over
  EXPECT_THAT(stream.ReadAll(), HasSubstr("[DONE]"));
  EXPECT_TRUE(server.WaitFor(kLong));
  EXPECT_FALSE(Client(server.port(), "GET /health").is_connected());
  EXPECT_THROW(server.stats(), lapidary::Error);
  server.Drain();  // changes nothing
}

TEST(InProcessServer, CloseEndsWhatIsOpen) {
  Server server(Arguments());
  Client stream(server.port(), "POST /v1/completions", kEndless);
  stream.ReadUntil("data: ");
  server.Close();
  EXPECT_TRUE(server.WaitFor(std::chrono::milliseconds(0)));
  EXPECT_THAT(stream.ReadAll(), Not(HasSubstr("[DONE]")));
  server.Close();
}

TEST(InProcessServer, TwoServeInOneProcess) {
  const Server one(Arguments({"--served-model-name=one"}));
  const Server two(Arguments({"--served-model-name=two"}));
  EXPECT_NE(one.port(), two.port());
  EXPECT_THAT(Get(one, "/v1/models"), HasSubstr("\"one\""));
  EXPECT_THAT(Get(two, "/v1/models"), HasSubstr("\"two\""));
}

TEST(InProcessServer, LeavesSignalsToTheProgram) {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  const Server server(Arguments());
  EXPECT_THAT(Get(server, "/health"), StartsWith("HTTP/1.1 200"));
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(InProcessServer, WhatCannotBeIsRefusedInASentence) {
  EXPECT_THAT(RefusalOf([] { Server server(Arguments({"--max-model-length=3"})); }),
              HasSubstr("--max-model-len"));
  EXPECT_THAT(RefusalOf([] { Server server(Arguments({"--max-num-seqs=none"})); }),
              HasSubstr("--max-num-seqs"));
  EXPECT_THAT(RefusalOf([] { Server server({"/no/such/model"}); }), HasSubstr("/no/such/model"));
  EXPECT_THAT(RefusalOf([] { Server server(Arguments({"--help"})); }), HasSubstr("--help"));
  const Server server(Arguments());
  const std::string taken = std::to_string(server.port());
  const std::vector<std::string> same = {LAPIDARY_SOURCE_DIR "/models/pebble-e", "--port=" + taken};
  EXPECT_THAT(RefusalOf([&] { Server other(same); }), HasSubstr(taken));
}

}  // namespace
