// `lapidary serve` as a function: of the command, and of a server within another program's process.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace lapidary {

class HttpServer;
class Session;

// The program that a server is part of. Without one, the server is the program: it takes signals,
// and ends the process when it has finished.
class ServeHost {
 public:
  virtual ~ServeHost() = default;
  // Clients can connect. `server` and `session` are there until OnEnding returns.
  virtual void OnServing(const std::string& url, const std::vector<std::string>& model_names,
                         HttpServer& server, Session& session) = 0;
  virtual void OnEnding() = 0;
};

// Adds all flags of `lapidary serve`; what is returned runs the server after parsing, to its end.
// `command` and `host` (may be null) must outlive that.
std::function<Status()> AddServeFlags(CLI::App* command, ServeHost* host);

}  // namespace lapidary
