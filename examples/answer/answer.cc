// Asks a model one question and prints the answer as it comes.
//
//   answer models/pebble-e "Who are you?"
#include <lapidary/session.h>

#include <iostream>

namespace {

// `text` as a JSON string, good enough for a line that was typed.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: answer MODEL QUESTION\n";
    return 2;
  }
  try {
    lapidary::Session session(argv[1], {.max_model_len = 1024});
    lapidary::Request request;
    request.prompt = session.EncodeChat(R"({"messages": [{"role": "user", "content": )" +
                                        Quoted(argv[2]) + "}]}");
    request.sampling.temperature = 0.0f;
    lapidary::Stream stream = session.Open();
    stream.Add(request);
    while (stream.num_open() > 0) {
      for (const lapidary::Update& update : stream.Take())
        std::cout << update.news.text << std::flush;
    }
    std::cout << "\n";
  } catch (const lapidary::Error& error) {
    std::cerr << "answer: " << error.what() << "\n";
    return 1;
  }
}
