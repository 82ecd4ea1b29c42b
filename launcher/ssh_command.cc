// Two levels of quoting: the path inside the script for /bin/sh, and the script as one word of the
// remote login shell's.
#include "launcher/ssh_command.h"

#include <algorithm>

#include <fmt/format.h>

namespace hora {
namespace {

// One word for a POSIX shell (and for csh).
std::string quoted(std::string_view text) {
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

bool is_plain(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:=@%+,").find(c) != std::string_view::npos;
  });
}

std::string remote_script(const SshOptions& options) {
  const bool told = !options.remote_horarun.empty();
  const std::string& wanted = told ? options.remote_horarun : options.own_horarun;
  const std::string look = told ? "" : R"([ -x "$h" ] || h=horarun; )";
  return fmt::format(
      R"(h={}; {}command -v "$h" >/dev/null || )"
      R"({{ echo "horarun: no $h on this host" >&2; exit 127; }}; exec "$h" --host-agent)",
      quoted(wanted), look);
}

bool is_ssh(const std::string& program) {
  return program.substr(program.rfind('/') + 1) == "ssh";
}

}  // namespace

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  while (true) {
    const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
    const std::size_t end = std::min(text.find_first_of(" \t", begin), text.size());
    if (begin == end) return words;
    words.emplace_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
}

std::vector<std::string> make_ssh_command(const SshOptions& options, const std::string& host) {
  std::vector<std::string> words = options.program;
  if (is_ssh(words.front())) {
    for (const char* word : {"-T", "-x", "-o", "BatchMode=yes", "-o",
                             "StrictHostKeyChecking=accept-new", "-o", "LogLevel=ERROR", "-o"}) {
      words.emplace_back(word);
    }
    words.push_back(fmt::format("ConnectTimeout={}", options.connect_timeout_s));
    if (options.port != 0) words.insert(words.end(), {"-p", std::to_string(options.port)});
    if (!options.identity_file.empty()) {
      words.insert(words.end(), {"-i", options.identity_file});
    }
  }
  words.push_back(host);
  words.push_back("exec /bin/sh -c " + quoted(remote_script(options)));
  return words;
}

std::string show_command(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    line += is_plain(word) ? word : quoted(word);
  }
  return line;
}

}  // namespace hora
