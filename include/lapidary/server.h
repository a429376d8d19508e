// The HTTP server of `lapidary serve` within this process: OpenAI's API and the others of
// docs/api.md.
//
//   lapidary::Server server({"models/pebble-e", "--port", "0"});
//   std::cout << server.url();  // http://127.0.0.1:40123
//   ...
//   server.Drain();             // newcomers are sent elsewhere, open answers complete
//   server.WaitFor(std::chrono::seconds(60));
//
// It has a thread of its own and takes no signals. Every method may be called from many threads at
// once. Whatever cannot be done is thrown (error.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lapidary/error.h"

namespace lapidary::v0 {

// What routers want to know of a server, as of now. Counts are those since it started.
struct ServerStats {
  int num_running = 0;        // sequences in steps
  int num_waiting = 0;        // sequences that wait for a place
  double kv_cache_usage = 0;  // [0, 1], of the pages; what only the prefix cache holds is free
  uint64_t num_finished = 0;  // requests
  uint64_t num_prompt_tokens = 0;
  uint64_t num_cached_prompt_tokens = 0;  // of those, found in the prefix cache
  uint64_t num_output_tokens = 0;

  // What stays as it is.
  int max_model_len = 0;
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int block_size = 0;  // tokens of a page of the full layers
  int num_blocks = 0;
};

class ServerCore;

class LAPIDARY_EXPORT Server {
 public:
  // `arguments`: a model and options, as `lapidary serve` takes them, and LAPIDARY_* variables
  // count likewise. Returns when clients can connect, after the weights were read.
  explicit Server(const std::vector<std::string>& arguments);
  ~Server();  // as Close()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Where this machine reaches it: http://127.0.0.1:PORT where it listens on all addresses.
  const std::string& url() const;
  int port() const;
  const std::vector<std::string>& model_names() const;

  // What SIGTERM is to `lapidary serve`: /ready says no, newcomers are served for --drain-delay
  // longer, open answers then get --shutdown-timeout to complete. Returns at once.
  void Drain();
  // Waits until it has ended; false: it has not by then.
  bool WaitFor(std::chrono::milliseconds timeout) const;
  // Ends what is open, and returns when the model's memory is free.
  void Close();

  // Throws once it has ended.
  ServerStats stats() const;

 private:
  std::unique_ptr<ServerCore> core_;
};

}  // namespace lapidary::v0
