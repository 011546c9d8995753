/* Pauses, deaf to signals, before each wait of the main thread: loaded into tests' programs by
 * `make test-slowed`. A signal meanwhile is for the program as one that comes between its last look
 * for signals and the system's wait, where a busy machine may stop it. Linux only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 150000000L /* longer than a test takes to see a prompt and to type */
#define SHORT_MS 1000       /* a wait that ends by itself so soon hides no signal */

static int is_slowed;

void slow_waits(void) { is_slowed = 1; }

static void pause_deaf(void) {
  struct timespec end;
  int old_errno = errno;
  if (syscall(SYS_gettid) != getpid()) return;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_nsec += PAUSE_NS;
  end.tv_sec += end.tv_nsec / 1000000000L;
  end.tv_nsec %= 1000000000L;
  while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &end, 0) == -1 && errno == EINTR) {
  }
  errno = old_errno;
}

static int is_readable(int file) {
  struct pollfd polled = {file, POLLIN, 0};
  return syscall(SYS_poll, &polled, 1, 0) != 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t read(int file, void *data, size_t size) {
  REAL(read);
  struct stat status;
  if (is_slowed && !fstat(file, &status) && !S_ISREG(status.st_mode) && !is_readable(file)) pause_deaf();
  return real(file, data, size);
}

int select(int count, fd_set *in, fd_set *out, fd_set *other, struct timeval *timeout) {
  REAL(select);
  if (is_slowed && (!timeout || timeout->tv_sec * 1000 >= SHORT_MS)) pause_deaf();
  return real(count, in, out, other, timeout);
}

int poll(struct pollfd *files, nfds_t count, int timeout) {
  REAL(poll);
  if (is_slowed && (timeout < 0 || timeout >= SHORT_MS) && !syscall(SYS_poll, files, count, 0)) pause_deaf();
  return real(files, count, timeout);
}

int epoll_wait(int file, struct epoll_event *events, int count, int timeout) {
  REAL(epoll_wait);
  if (is_slowed && (timeout < 0 || timeout >= SHORT_MS) && !is_readable(file)) pause_deaf();
  return real(file, events, count, timeout);
}

int sem_wait(sem_t *lock) {
  REAL(sem_wait);
  if (!is_slowed) return real(lock);
  if (!sem_trywait(lock)) return 0;
  pause_deaf();
  return real(lock);
}

int sem_clockwait(sem_t *lock, clockid_t clock, const struct timespec *end) {
  REAL(sem_clockwait);
  struct timespec now;
  if (!is_slowed) return real(lock, clock, end);
  if (!sem_trywait(lock)) return 0;
  clock_gettime(clock, &now);
  if ((end->tv_sec - now.tv_sec) * 1000 > SHORT_MS) pause_deaf();
  return real(lock, clock, end);
}

pid_t waitpid(pid_t process, int *status, int options) {
  REAL(waitpid);
  if (is_slowed && !(options & WNOHANG)) pause_deaf();
  return real(process, status, options);
}

int flock(int file, int operation) {
  REAL(flock);
  if (is_slowed && !(operation & LOCK_NB)) pause_deaf();
  return real(file, operation);
}
