# Allocates GPUs of Slurm from processes of their own, looks for anything booked twice, and gives everything back.
use strict;
use warnings;
use POSIX ();
use Slurm qw(:all);
use Time::HiRes qw(sleep time);

use constant GPUS => 8;
my ($nodes, $sinfo) = @ENV{qw(NODES SINFO)};
my %wish = (
    name => 'bench', partition => 'all', work_dir => '/', user_id => $<, group_id => $( + 0, time_limit => 100_000,
    min_nodes => 1, max_nodes => 1, num_tasks => 1, tres_per_node => 'gres:gpu:1',
);
$| = 1;

sub cannot {
    my ($why) = @_;
    $why =~ tr/"\n/' /;
    print qq({"cannot":"$why"}\n);
    exit 1;
}

# Runs it in so many processes, each with its number, and gives the lines that all of them say.
sub at_once {
    my ($count, $work) = @_;
    my @pipes;
    for my $number (0 .. $count - 1) {
        pipe(my $read, my $write) or cannot("no pipe: $!");
        my $child = fork() // cannot("no process: $!");
        if ($child == 0) {
            my @said = $work->(Slurm::new(), $number);
            print {$write} map { "$_\n" } @said;
            close $write;
            # Nothing of the parent's is to be tidied up here.
            POSIX::_exit(0);
        }
        close $write;
        push @pipes, [$child, $read];
    }
    my @said;
    for (@pipes) {
        my ($child, $read) = @$_;
        chomp(my @lines = <$read>);
        push @said, @lines;
        waitpid $child, 0;
    }
    return @said;
}

sub idle {
    my $sum = 0;
    $sum += $_ for `$sinfo --noheader --states=idle --format=%D`;
    return $sum;
}

# What was given back is free only when its node has said so.
sub until_idle {
    for (1 .. 600) {
        return if idle() >= $nodes;
        sleep 0.2;
    }
    cannot('not everything that was given back is free again');
}

sub quantile {
    my ($share, @times) = @_;
    @times = sort { $a <=> $b } @times;
    my $place = int(@times * $share);
    return 1000 * $times[$place > $#times ? $#times : $place];
}

sub measure {
    my ($count, $seconds) = @_;
    # Beyond that there would be queueing.
    my $most = int(0.8 * $nodes * GPUS / $count);
    my $began = time;
    my @said = at_once($count, sub {
        my ($slurm) = @_;
        my @taken;
        while (time < $began + $seconds && @taken < $most) {
            my $sent = time;
            my $got = $slurm->allocate_resources(\%wish);
            my $took = time - $sent;
            my $node = $got && $got->{job_id} ? $got->{node_list} // '' : '';
            return 'no: ' . ($slurm->strerror() // 'no node') if $node eq '';
            push @taken, "$got->{job_id} $node $took";
        }
        return @taken;
    });
    my $lasted = time - $began;
    my (@jobs, @times, %booked);
    for (@said) {
        cannot("Slurm refuses: $_") if /^no: /;
        my ($job, $node, $took) = split ' ';
        push @jobs, $job;
        push @times, $took;
        $booked{$node}++;
    }
    my @over = grep { $booked{$_} > GPUS } keys %booked;
    cannot("Slurm has booked more than there is on @over") if @over;
    at_once(8, sub {
        my ($slurm, $number) = @_;
        for (my $i = $number; $i < @jobs; $i += 8) { $slurm->complete_job($jobs[$i], 0) }
        return;
    });
    until_idle();
    return sprintf '{"rate":%.3f,"p50_ms":%.3f,"p99_ms":%.3f}', @jobs / $lasted, quantile(0.5, @times), quantile(0.99, @times);
}

until_idle();
measure(4, 2);
print qq({"peer":"Slurm, $nodes nodes","durable":false}\n);
while (my $line = <STDIN>) {
    my ($count, $seconds) = split ' ', $line;
    print measure($count, $seconds), "\n";
}
