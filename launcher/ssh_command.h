// The command that starts an agent on another host.
//
//   ssh -T -x -o BatchMode=yes ... node2 exec /bin/sh -c '... exec "$program" --host-agent'
//
// Nothing secret is in it: what an agent has to know it reads from its standard input. ssh must
// not ask (BatchMode), for nobody may be there to answer, and gives up after a while. A key that is
// not known yet is taken, a key that has changed is refused: the job's secret goes to whoever
// answers. What /bin/sh gets works behind any login shell, and looks for horarun where this one
// lies - as it does on a shared file system, or when hosts are installed alike - and then in the
// PATH over there. Pure: values in, words out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hora {

struct SshOptions {
  std::vector<std::string> program = {"ssh"};  ///< With options of the user's; one that is not
                                               ///< called ssh gets host and command only.
  int port = 0;                                ///< 0: ssh's own choice.
  std::string identity_file;                   ///< Empty: ssh's own choice.
  std::string own_horarun;                     ///< This program's file.
  std::string remote_horarun;                  ///< Path or name over there; empty: look for it.
  int connect_timeout_s = 30;
};

/// The words of HORA_SSH, split at blanks.
std::vector<std::string> split_words(std::string_view text);

/// The whole command for one host.
std::vector<std::string> make_ssh_command(const SshOptions& options, const std::string& host);

/// The command as a line for a message, with quotes where a shell needs them.
std::string show_command(const std::vector<std::string>& words);

}  // namespace hora
