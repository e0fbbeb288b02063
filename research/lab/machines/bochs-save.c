/*
 * Makes Bochs save its state when a signal asks for it, as the button "suspend" of its graphical
 * displays does, which its display "term" does not have.
 *
 * Loaded before Bochs (LD_PRELOAD). The display asks for keys between two instructions of the
 * machine, in the same place from where the button is served; there, once SIGUSR1 has come, Bochs's
 * own function saves into the folder TANDEM_LAB_SAVE, and the process ends. Bochs exports its
 * functions for its plugins, so that they are found by their C++ names.
 *
 * Seen to work with Bochs 2.7 (Debian 12). With another that lacks the names, it ends with status 3.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#define NO_KEY (-1)

static volatile sig_atomic_t asked;

static void on_signal(int signal)
{
    (void)signal;
    asked = 1;
}

__attribute__((constructor)) static void listen(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
}

static void save(void)
{
    /* bool bx_real_sim_c::save_state(const char *), on the object that SIM points to. */
    bool (*save_state)(void *, const char *);
    *(void **)&save_state = dlsym(RTLD_DEFAULT, "_ZN13bx_real_sim_c10save_stateEPKc");
    void **sim = dlsym(RTLD_DEFAULT, "SIM");
    const char *folder = getenv("TANDEM_LAB_SAVE");
    if (!save_state || !sim || !*sim || !folder)
        _exit(3);
    _exit(save_state(*sim, folder) ? 0 : 4);
}

/* The display's way to ask for a key: there is never one. */
int wgetch(void *window)
{
    (void)window;
    if (asked)
        save();
    return NO_KEY;
}
